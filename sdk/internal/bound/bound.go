package bound

import (
	"strings"
	"unicode/utf8"
)

const (
	// Also is how many further charges a check may have.
	Also = 7
	// DecisionIDBytes is the longest decision id.
	DecisionIDBytes = 128
	// FrameChecks is how many checks a frame of a CheckStream may have.
	FrameChecks = 1024
	// FrameBytes is how long it may be.
	FrameBytes = 256 << 10
)

// Proper reports whether s is a name as the service takes them: least to most bytes of UTF-8, without NUL.
func Proper(s string, least, most int) bool {
	return len(s) >= least && len(s) <= most && utf8.ValidString(s) && strings.IndexByte(s, 0) < 0
}
