package quotaprom

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"

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

// Shows that every outcome that a client counts is collected.
func TestEveryOutcomeIsCollected(t *testing.T) {
	if got, want := len(outcomes(sdk.ClassStats{})), reflect.TypeFor[sdk.ClassStats]().NumField(); got != want {
		t.Errorf("%d outcomes of %d are collected", got, want)
	}
}
