package raftlog

import (
	"context"
	"io"
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"
)

// record keeps what was logged.
type record struct {
	lines []string
	attrs []slog.Attr
	to    *record
}

func (r *record) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelInfo }

func (r *record) Handle(_ context.Context, line slog.Record) error {
	text := line.Level.String() + " " + line.Message
	add := func(a slog.Attr) bool {
		text += " " + a.String()
		return true
	}
	for _, a := range r.attrs {
		add(a)
	}
	line.Attrs(add)
	r.to.lines = append(r.to.lines, text)
	return nil
}

func (r *record) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &record{attrs: append(append([]slog.Attr(nil), r.attrs...), attrs...), to: r.to}
}

func (r *record) WithGroup(string) slog.Handler { return r }

// Raft's lines reach slog with level, name and values; debug lines, and what they would cost, do not.
func TestBridge(t *testing.T) {
	out := &record{}
	out.to = out
	b := newBridge(slog.New(out), "raft")
	b.Debug("debug")
	b.Trace("trace")
	b.Info("info", "servers", hclog.Fmt("%d of %d", 2, 3))
	b.With("peer", "b").Named("net").Warn("warn", "n", 1)
	b.Error("error", "error", io.EOF)
	b.Log(hclog.Off, "off")
	b.StandardLogger(nil).Print("standard")
	want := []string{
		"INFO info logger=raft servers=2 of 3",
		"WARN warn peer=b logger=raft.net n=1",
		"ERROR error logger=raft error=EOF",
		"INFO standard logger=raft",
	}
	if diff := cmp.Diff(want, out.lines); diff != "" {
		t.Error(diff)
	}
	if b.IsDebug() || b.IsTrace() || !b.IsInfo() || b.GetLevel() != hclog.Info {
		t.Error("Raft is told to write debug lines")
	}
}
