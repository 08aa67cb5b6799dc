package quotaprom

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/sdk"
)

// Collector collects the counters of one client.
type Collector struct{ client *sdk.Client }

var _ prometheus.Collector = (*Collector)(nil)

// New makes a collector of a client's counters.
func New(c *sdk.Client) prometheus.Collector { return &Collector{client: c} }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("quorate_sdk_"+name, help, labels, nil)
}

var (
	checks = desc("checks_total", "Checks by class and outcome. Only allowed is verified by an owner; bypassed and local "+
		"went on without one.", "class", "outcome")
	sends    = desc("sends_total", "Checks sent to a node for the first time.")
	retries  = desc("retries_total", "Checks sent again, under the same decision id.")
	withheld = desc("retries_withheld_total", "Retries that the budget did not allow.")
	frames   = desc("frames_total", "Frames in which checks were sent.")
	wasted   = desc("wasted_total", "Admissions consumed for requests of several identities that were then refused.")
	givenUp  = desc("nodes_given_up_total", "How often a node was given up because it answered nothing.")
	inFlight = desc("in_flight", "Checks that wait for an answer.")
	hints    = desc("hints", "Deny hints that are kept.")
	local    = desc("local_held", "Admissions that the failure mode local holds.")
	nodes    = desc("nodes", "Nodes that are connected.")
	live     = desc("watch_live", "1 while the configuration is confirmed, else 0.")
	revision = desc("policy_revision", "The newest policy revision that was seen.")
	mapOf    = desc("map_version", "The version of the partition map.")
)

// Describe tells of all metrics.
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		checks, sends, retries, withheld, frames, wasted, givenUp, inFlight, hints, local, nodes, live, revision, mapOf,
	} {
		out <- d
	}
}

// Collect reads the counters.
func (c *Collector) Collect(out chan<- prometheus.Metric) { collect(c.client.Stats(), out) }

func collect(s sdk.Stats, out chan<- prometheus.Metric) {
	counter := func(d *prometheus.Desc, n uint64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	gauge := func(d *prometheus.Desc, v float64) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v)
	}
	for class, n := range s.Classes {
		for _, o := range outcomes(n) {
			counter(checks, o.n, class, o.name)
		}
	}
	counter(sends, s.Sends)
	counter(retries, s.Retries)
	counter(withheld, s.RetriesWithheld)
	counter(frames, s.Frames)
	counter(wasted, s.Wasted)
	counter(givenUp, s.NodesGivenUp)
	gauge(inFlight, float64(s.InFlight))
	gauge(hints, float64(s.Hints))
	gauge(local, float64(s.LocalHeld))
	gauge(nodes, float64(s.Nodes))
	gauge(live, map[bool]float64{true: 1}[s.WatchLive])
	gauge(revision, float64(s.PolicyRevision))
	gauge(mapOf, float64(s.MapVersion))
}

type outcome struct {
	name string
	n    uint64
}

func outcomes(n sdk.ClassStats) []outcome {
	return []outcome{
		{"allowed", n.Allowed}, {"denied", n.Denied}, {"hinted", n.Hinted}, {"disabled", n.Disabled},
		{"bypassed", n.Bypassed}, {"local", n.Local}, {"local_denied", n.LocalDenied}, {"unavailable", n.Unavailable},
		{"overloaded", n.Overloaded}, {"refused", n.Refused}, {"canceled", n.Canceled},
	}
}
