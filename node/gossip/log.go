package gossip

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"
)

const (
	// maxLines is how many of memberlist's lines are logged in one linesInterval.
	maxLines      = 20
	linesInterval = 10 * time.Second
	// maxLineBytes cuts a line: some of memberlist's list the bytes of a description.
	maxLineBytes = 300
	// refusalLogInterval is how often refused packets and streams are logged.
	refusalLogInterval = 10 * time.Second
)

// lines takes what memberlist logs to a log.Logger. Nothing that goes wrong in gossip is an error of the node, as
// nothing rests on it, so its errors are warnings here.
type lines struct {
	to *slog.Logger

	mu      sync.Mutex // guards the fields below
	ended   bool       // what memberlist ends with is nobody's concern
	until   time.Time  // the end of this interval
	logged  int        // lines in it
	leftOut int        // lines since the last logged one
}

// Write logs one line.
func (l *lines) Write(p []byte) (int, error) {
	level, text := parseLine(string(p))
	// Of two nodes with one name the table tells more.
	if !l.to.Enabled(context.Background(), level) || strings.HasPrefix(text, "Conflicting address") {
		return len(p), nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return len(p), nil
	}
	if now := time.Now(); now.After(l.until) {
		l.until, l.logged = now.Add(linesInterval), 0
	}
	if l.logged >= maxLines {
		l.leftOut++
		return len(p), nil
	}
	l.logged++
	var attrs []slog.Attr
	if l.leftOut > 0 {
		attrs = append(attrs, slog.Int("left_out", l.leftOut))
		l.leftOut = 0
	}
	l.to.LogAttrs(context.Background(), level, text, attrs...)
	return len(p), nil
}

// end drops all lines from now on.
func (l *lines) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
}

// parseLine takes a line of memberlist's apart: "[LEVEL] memberlist: text".
func parseLine(line string) (slog.Level, string) {
	line = strings.TrimSpace(line)
	level := slog.LevelWarn
	if tag, rest, ok := strings.Cut(line, "] "); ok && strings.HasPrefix(tag, "[") {
		line = rest
		switch tag {
		case "[DEBUG":
			level = slog.LevelDebug
		case "[INFO":
			level = slog.LevelInfo
		}
	}
	line = strings.TrimPrefix(line, "memberlist: ")
	// A node defends itself against being taken for gone: how gossip works.
	if strings.HasPrefix(line, "Refuting ") {
		level = slog.LevelInfo
	}
	if len(line) > maxLineBytes {
		line = strings.ToValidUTF8(line[:maxLineBytes], "") + "…"
	}
	return level, line
}

// refusals logs what was not let in, as a count.
type refusals struct {
	to *slog.Logger

	mu    sync.Mutex // guards the fields below
	next  time.Time  // not before this is it logged again
	quiet int        // refusals since
	all   uint64     // refusals ever
}

// total is how many refusals there were.
func (r *refusals) total() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all
}

func (r *refusals) note(what string, from net.Addr, reason error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.quiet++
	r.all++
	now := time.Now()
	if now.Before(r.next) {
		return
	}
	r.to.Warn("refused what came to the gossip port", "count", r.quiet, "last", what, "from", from.String(),
		"reason", reason)
	r.next, r.quiet = now.Add(refusalLogInterval), 0
}
