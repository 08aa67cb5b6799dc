package partition

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/fsm"
)

// metrics are what a partition tells Prometheus. No label holds what a caller chooses.
type metrics struct {
	entries   prometheus.Counter
	decisions prometheus.Histogram
	commit    prometheus.Histogram
	foreseen  prometheus.Counter
	paceAlarm prometheus.Counter

	disagreements prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, p *Partition) *metrics {
	labels := prometheus.Labels{"partition": p.cfg.ID}
	m := &metrics{
		entries: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "quorate_partition_entries_total", ConstLabels: labels,
			Help: "Entries that this node proposed as leader and whose outcome is known or given up.",
		}),
		decisions: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "quorate_partition_entry_decisions", ConstLabels: labels,
			Help:    "Checks and peeks per proposed entry; 0 is a time tick.",
			Buckets: []float64{0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024},
		}),
		commit: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "quorate_partition_commit_seconds", ConstLabels: labels,
			Help:    "From the stamp of an entry until it was applied here or given up.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 18),
		}),
		foreseen: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "quorate_partition_denials_foreseen_total", ConstLabels: labels,
			Help: "Denials that this node gave as leader without a place in an entry.",
		}),
		paceAlarm: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "quorate_partition_time_ahead_total", ConstLabels: labels,
			Help: "Times that this replica saw partition time outrun its own clock.",
		}),
		disagreements: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "quorate_partition_disagreements_total", ConstLabels: labels,
			Help: "Times that this replica saw another's state differ from its own.",
		}),
	}
	state := func(name, help string, read func(s *fsm.Status) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels},
			func() float64 { s := p.Status(); return read(&s.Status) })
	}
	reg.MustRegister(m.entries, m.decisions, m.commit, m.foreseen, m.paceAlarm, m.disagreements,
		state("quorate_partition_keys", "Live keys.", func(s *fsm.Status) float64 { return float64(s.Keys) }),
		state("quorate_partition_replay_records", "Recorded allows.",
			func(s *fsm.Status) float64 { return float64(s.Allows) }),
		state("quorate_partition_denial_records", "Recorded denials.",
			func(s *fsm.Status) float64 { return float64(s.Denials) }),
		state("quorate_partition_policy_revision", "Policy revision in force.",
			func(s *fsm.Status) float64 { return float64(s.Revision) }),
		state("quorate_partition_feature_level", "Feature level that the log has reached.",
			func(s *fsm.Status) float64 { return float64(s.Level) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "quorate_partition_diverged", ConstLabels: labels,
			Help: "1 when this replica has stopped for good, since its state is not that of a majority.",
		}, func() float64 { return flag(p.diverged() != "") }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "quorate_partition_disk_low", ConstLabels: labels,
			Help: "1 while this node's disk has too little room for the partition to admit anything.",
		}, func() float64 { return flag(p.diskLow.Load()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "quorate_partition_policy_lease_expired", ConstLabels: labels,
			Help: "1 while this node leads the partition and decides nothing, for want of a policy lease.",
		}, func() float64 { return flag(p.group.Leadership().Ready && p.owner.unpermitted.Load()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "quorate_partition_leader", ConstLabels: labels,
			Help: "1 while this node leads the partition.",
		}, func() float64 { return flag(p.group.Leadership().Ready) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "quorate_partition_queue", ConstLabels: labels,
			Help: "Checks and peeks that wait to be proposed.",
		}, func() float64 { return float64(p.owner.queue.len()) }),
	)
	return m
}

func (m *metrics) committed(decisions int, took time.Duration) {
	m.entries.Inc()
	m.decisions.Observe(float64(decisions))
	m.commit.Observe(took.Seconds())
}

func flag(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
