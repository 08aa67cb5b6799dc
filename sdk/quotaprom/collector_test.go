package quotaprom

import (
	"context"
	"errors"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/sdk"
)

// Shows what is collected of a client whose cluster is away, that counters and gauges are named as Prometheus wants
// them, and that an invented class gets no series of its own.
func TestCollector(t *testing.T) {
	client, err := sdk.New([]string{"127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	if _, err := client.Check(context.Background(), "acme", "invented"); !errors.Is(err, sdk.ErrUnavailable) {
		t.Fatal(err)
	}
	registry := prometheus.NewPedanticRegistry() // which compares what is collected with what is described
	registry.MustRegister(New(client))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if len(families) < 10 {
		t.Errorf("%d metrics", len(families))
	}
	unavailable := 0.0
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "quorate_sdk_") || f.GetHelp() == "" ||
			strings.HasSuffix(f.GetName(), "_total") != (f.GetMetric()[0].GetCounter() != nil) {
			t.Errorf("%s is not named as it should be, or has no help", f.GetName())
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if v := l.GetValue(); strings.Contains(v, "acme") || strings.Contains(v, "invented") {
					t.Errorf("%s has a label %s", f.GetName(), v)
				}
				if l.GetValue() == "unavailable" {
					unavailable += m.GetCounter().GetValue()
				}
			}
		}
	}
	if unavailable != 1 {
		t.Errorf("%v unavailable checks are counted", unavailable)
	}
}

// snake is a field's name as Prometheus would have it.
func snake(name string) string {
	return strings.ToLower(regexp.MustCompile(`([a-z])([A-Z])`).ReplaceAllString(name, "${1}_${2}"))
}

// numbered sets each number of a struct to another one, from first on, and each bool to true, but no text; it returns what each is
// by its name.
func numbered(t *testing.T, of any, first int) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	v := reflect.ValueOf(of).Elem()
	for i := range v.NumField() {
		name, n := snake(v.Type().Field(i).Name), first+i
		switch f := v.Field(i); f.Kind() {
		case reflect.Uint64:
			f.SetUint(uint64(n))
		case reflect.Int:
			f.SetInt(int64(n))
		case reflect.Bool:
			f.SetBool(true)
			n = 1
		case reflect.Map, reflect.String: // which are no count
			continue
		default:
			t.Fatalf("%s is a %s", name, f.Kind())
		}
		out[name] = float64(n)
	}
	return out
}

// counted collects what it has.
type counted struct {
	*Collector
	stats sdk.Stats
}

func (c counted) Collect(out chan<- prometheus.Metric) { collect(c.stats, out) }

// Shows that everything a client counts is collected, under its own name.
func TestEachCountHasItsName(t *testing.T) {
	var class sdk.ClassStats
	var s sdk.Stats
	wantOutcomes, want := numbered(t, &class, 1000), numbered(t, &s, 10)
	s.Classes = map[string]sdk.ClassStats{"convert": class}
	for name, n := range wantOutcomes {
		want["checks convert "+name] = n
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(counted{&Collector{}, s})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := strings.TrimSuffix(strings.TrimPrefix(f.GetName(), "quorate_sdk_"), "_total")
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			got[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
