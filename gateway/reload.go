package gateway

import (
	"context"
	"errors"
	"os"
	"reflect"
	"time"
)

const (
	// reloadInterval is how often it is looked whether the files have changed.
	reloadInterval = time.Second
	// quietLooks are how often in a row all of them must look the same before what has changed is read, so that a file
	// that is still being written, or half of what belongs together, does not count.
	quietLooks = 5
)

// watcher knows which files there were at the last attempt.
type watcher struct {
	files     *files      // names
	attempted fingerprint // what they were
	changing  fingerprint // what they were when it was last seen that they are others; zero: they were not
	quiet     int         // how often in a row they were the same since
}

func (w *watcher) note(f *files) {
	w.attempted, w.changing, w.quiet, w.files = f.fingerprint(), fingerprint{}, 0, f.forget()
}

// settled reports whether the files are others than at the last attempt, and have not changed for long enough.
func (w *watcher) settled() bool {
	now := w.files.again().fingerprint()
	switch now {
	case w.attempted:
		w.changing, w.quiet = fingerprint{}, 0
		return false
	case w.changing:
		w.quiet++
	default:
		w.changing, w.quiet = now, 0
	}
	return w.quiet >= quietLooks
}

// watchFiles reads the configuration again when files have changed, and at each hangup. It also looks whether the
// policy lists the classes that routes charge.
func (g *Gateway) watchFiles(ctx context.Context, hangups <-chan os.Signal) {
	tick := time.NewTicker(g.interval)
	defer tick.Stop()
	var told string
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangups:
		case <-tick.C:
			told = g.tellUnlisted(told)
			if !g.watcher.settled() {
				continue
			}
		}
		g.reload()
	}
}

// reload puts the configuration in force as it is now, or says why not.
func (g *Gateway) reload() {
	was := g.current.Load()
	read := newFiles()
	gen, err := g.recompile(was, read)
	g.watcher.note(read)
	if err != nil {
		g.metrics.reloads.WithLabelValues(reloadRefused).Inc()
		g.metrics.good.Set(0)
		g.log.Error("the changed configuration is refused: that before stays in force", "error", err)
		return
	}
	g.apply(gen)
	g.metrics.reloads.WithLabelValues(reloadApplied).Inc()
	for name, u := range was.upstreams {
		if gen.upstreams[name] != u {
			u.transport.CloseIdleConnections() // those in use end as idle ones do
		}
	}
	g.log.Info("the changed configuration is in force")
}

func (g *Gateway) recompile(was *generation, read *files) (*generation, error) {
	c, err := load(was.config.path, was.config.environ, read)
	if err != nil {
		return nil, err
	}
	gen, err := compile(c, g, was)
	if len(c.early) == 0 { // else what could not be read would seem to have changed
		err = errors.Join(c.source.tell(was.config.mustStay(c)), err)
	}
	if err != nil {
		return nil, err
	}
	return gen, nil
}

func (g *Gateway) apply(gen *generation) {
	g.metrics.retain(gen.routes)
	g.current.Store(gen)
	g.metrics.good.Set(1)
	g.metrics.since.SetToCurrentTime()
}

// mustStay reports what of c must not be another while the gateway runs.
func (c *Config) mustStay(next *Config) (p problems) {
	for _, f := range []struct {
		place    string
		was, now any
	}{
		{"listen", c.Listen, next.Listen}, {"admin", c.Admin, next.Admin}, {"bounds", c.Bounds, next.Bounds},
		{"cluster", c.Cluster, next.Cluster}, {"cluster.policy_file", c.policy, next.policy}, {"log", c.Log, next.Log},
		{"tls", c.TLS == (TLSConfig{}), next.TLS == (TLSConfig{})},
	} {
		if !reflect.DeepEqual(f.was, f.now) {
			p.add(f.place, "it has changed: start the gateway anew, or change it back")
		}
	}
	return p
}
