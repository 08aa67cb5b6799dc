package gateway

import (
	"strings"
	"testing"
	"time"
)

// Shows that classes of routes which the policy in force does not list are told once for each change, of the policy and
// of the configuration, in the log, and at all times by metric and /readyz?verbose.
func TestUnlistedClasses(t *testing.T) {
	r := mustRig(t, accountRoutes, nil)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	r.poll = 20 * time.Millisecond
	r.start(t)
	unlisted := func(n string, names string) {
		t.Helper()
		until(t, n+" unlisted", func() bool { return r.metric(t, "quorate_gateway_unlisted_classes") == n })
		_, body := r.probe(t, "/readyz?verbose")
		if strings.Contains(body, "does not list") != (names != "") || !strings.Contains(body, names) {
			t.Errorf("want %q: %s", names, body)
		}
	}
	warned := func() int { return strings.Count(r.log.String(), "the policy does not list all classes") }
	unlisted("0", "")
	if err := r.cluster.Apply(strings.NewReplacer("  dear:", "  deer:", "  convert: {limits: [{name: per-minute, limit: 3",
		"  konvert: {limits: [{name: per-minute, limit: 3", "pro: {convert", "pro: {konvert").Replace(testPolicy)); err != nil {
		t.Fatal(err)
	}
	unlisted("2", ": convert, dear\n")
	r.put(t, "gateway.yaml", r.whole(strings.ReplaceAll(accountRoutes, "class: dear", "class: login")))
	r.hangups <- nil
	r.reloads(t, reloadApplied, 1)
	unlisted("1", ": convert\n")
	until(t, "two changes are logged", func() bool { return warned() == 2 })
	if err := r.cluster.Apply(testPolicy); err != nil {
		t.Fatal(err)
	}
	unlisted("0", "")
	until(t, "the end is logged", func() bool {
		return strings.Contains(r.log.String(), "the policy lists all classes that routes charge now")
	})
	if n := warned(); n != 2 || !strings.Contains(r.log.String(), `classes="convert, dear" revision=2`) {
		t.Errorf("it was logged %d times", n)
	}
}
