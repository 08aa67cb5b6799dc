package policy

// Bounds of a policy. A policy beyond one of them is refused as a whole.
const (
	// MaxLimit is the largest limit, and the largest cost of one check: 2^53, the largest integer
	// that every JSON reader keeps exact.
	MaxLimit = int64(1) << 53
	// MinWindowNanos and MaxWindowNanos bound the window of a limit: 1 ms to 366 days.
	MinWindowNanos = int64(1_000_000)
	MaxWindowNanos = int64(366) * 24 * 3600 * 1_000_000_000

	// MaxClasses bounds the listed classes.
	MaxClasses = 4096
	// MaxOverrides bounds the rules under tiers and principals together.
	MaxOverrides = 1_000_000
	// MaxLimitsPerRule bounds the limits of one rule, and those of one group.
	MaxLimitsPerRule = 16

	// MaxPrincipalBytes, MaxClassBytes and MaxTierBytes bound names.
	MaxPrincipalBytes = 512
	MaxClassBytes     = 128
	MaxTierBytes      = 64
	// MaxNameBytes bounds the version label and the names of limits and groups.
	MaxNameBytes = 128

	// MinReplayHorizonNanos and MaxReplayHorizonNanos bound the replay horizon: 1 s to 15 min.
	MinReplayHorizonNanos = int64(1_000_000_000)
	MaxReplayHorizonNanos = int64(15) * 60 * 1_000_000_000
	// MinHorizonTimeouts is how many timeouts a replay horizon holds at least, so that a retry
	// within the timeout always finds the record of the first try.
	MinHorizonTimeouts = 10
)

// Settings of a class whose policy does not give them.
const (
	DefaultReplayHorizonNanos = int64(30) * 1_000_000_000
	DefaultTimeoutNanos       = int64(100) * 1_000_000
)

// DefaultClass is the name under which everything that the policy does not list is decided and
// counted. It cannot be listed.
const DefaultClass = "default"

// FailureMode says what a gateway does with a class whose owner cannot be reached.
type FailureMode uint8

// The failure modes. The zero value is the safe one.
const (
	FailDeny FailureMode = iota
	FailAllow
	FailLocal
)

// String is the mode as a policy file writes it.
func (m FailureMode) String() string {
	switch m {
	case FailDeny:
		return "deny"
	case FailAllow:
		return "allow"
	case FailLocal:
		return "local"
	}
	return "unknown"
}

// Limit caps the cost of admissions in any rolling window of WindowNanos at Max.
type Limit struct {
	Name        string
	Max         int64
	WindowNanos int64
}

// Class is the rule of a listed class, or of default, with the settings that belong to the class
// as a whole.
type Class struct {
	Limits []Limit
	// ReplayHorizonNanos is how long a recorded decision is repeated for its decision id.
	ReplayHorizonNanos int64
	// TimeoutNanos is the gateway's whole budget for one check.
	TimeoutNanos int64
	// RetentionNanos keeps history for a longer window to come; 0 when not set.
	RetentionNanos int64
	OnUnavailable  FailureMode
	// LocalLimit is the gateway's own limit when OnUnavailable is FailLocal; else its zero value.
	LocalLimit Limit
	Disabled   bool
}

// Group is a set of limits over several classes of one principal.
type Group struct {
	Name    string
	Classes []string
	Limits  []Limit
}

// Windows are the longest windows of a class, in nanoseconds, 0 where there is none.
type Windows struct {
	// Rule is the longest over the class's own rule and those of all tiers and principals for it.
	Rule int64
	// Group is the longest of its group's limits.
	Group int64
	// Retention is the class's retention.
	Retention int64
}
