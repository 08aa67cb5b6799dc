package raftlog

import (
	"context"
	"fmt"
	"io"
	stdlog "log"
	"log/slog"
	"strings"

	"github.com/hashicorp/go-hclog"
)

// bridge lets Raft, which logs with hclog, log to slog. Raft's debug and trace lines are dropped: it
// writes several for each request.
type bridge struct {
	base *slog.Logger // without the name
	out  *slog.Logger
	name string
	with []any
}

var _ hclog.Logger = (*bridge)(nil)

// New is an hclog.Logger of the given name that writes to base.
func New(base *slog.Logger, name string) hclog.Logger { return newBridge(base, name) }

func newBridge(base *slog.Logger, name string) *bridge {
	return &bridge{base: base, out: base.With("logger", name), name: name}
}

func (b *bridge) Log(level hclog.Level, msg string, args ...any) {
	var to slog.Level
	switch {
	case level == hclog.Off || level < hclog.Info && level != hclog.NoLevel:
		return
	case level == hclog.Warn:
		to = slog.LevelWarn
	case level == hclog.Error:
		to = slog.LevelError
	default:
		to = slog.LevelInfo
	}
	b.out.Log(context.Background(), to, msg, plainArgs(args)...)
}

// plainArgs makes values that hclog would format itself into text.
func plainArgs(args []any) []any {
	out := make([]any, len(args))
	for i, a := range args {
		out[i] = a
		if f, ok := a.(hclog.Format); ok && len(f) > 0 {
			if format, ok := f[0].(string); ok {
				out[i] = fmt.Sprintf(format, f[1:]...)
			}
		}
	}
	return out
}

func (b *bridge) Trace(string, ...any)          {}
func (b *bridge) Debug(string, ...any)          {}
func (b *bridge) Info(msg string, args ...any)  { b.Log(hclog.Info, msg, args...) }
func (b *bridge) Warn(msg string, args ...any)  { b.Log(hclog.Warn, msg, args...) }
func (b *bridge) Error(msg string, args ...any) { b.Log(hclog.Error, msg, args...) }

func (b *bridge) IsTrace() bool { return false }
func (b *bridge) IsDebug() bool { return false }
func (b *bridge) IsInfo() bool  { return b.out.Enabled(context.Background(), slog.LevelInfo) }
func (b *bridge) IsWarn() bool  { return b.out.Enabled(context.Background(), slog.LevelWarn) }
func (b *bridge) IsError() bool { return b.out.Enabled(context.Background(), slog.LevelError) }

func (b *bridge) ImpliedArgs() []any { return b.with }

func (b *bridge) With(args ...any) hclog.Logger {
	args = plainArgs(args)
	named := newBridge(b.base.With(args...), b.name)
	named.with = append(append([]any(nil), b.with...), args...)
	return named
}

func (b *bridge) Name() string { return b.name }

func (b *bridge) Named(name string) hclog.Logger { return b.ResetNamed(b.name + "." + name) }

func (b *bridge) ResetNamed(name string) hclog.Logger {
	named := newBridge(b.base, name)
	named.with = b.with
	return named
}

// SetLevel is ignored: slog's handler decides.
func (b *bridge) SetLevel(hclog.Level) {}

func (b *bridge) GetLevel() hclog.Level { return hclog.Info }

func (b *bridge) StandardLogger(o *hclog.StandardLoggerOptions) *stdlog.Logger {
	return stdlog.New(b.StandardWriter(o), "", 0)
}

func (b *bridge) StandardWriter(*hclog.StandardLoggerOptions) io.Writer { return lines{b} }

// lines logs what is written to it.
type lines struct{ to *bridge }

func (l lines) Write(p []byte) (int, error) {
	l.to.Info(strings.TrimRight(string(p), "\n"))
	return len(p), nil
}
