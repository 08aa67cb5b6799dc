package policy

import (
	"strconv"
	"strings"
)

// setting is a setting of a class as text; empty when it is not set.
type setting struct {
	key, text string
}

// settings of a class, in the order in which a file writes them.
func settings(c *Class) []setting {
	retention, local := "", ""
	if c.RetentionNanos != 0 {
		retention = FormatDuration(c.RetentionNanos)
	}
	if c.OnUnavailable == FailLocal {
		local = limitText(c.LocalLimit)
	}
	return []setting{
		{"replay_horizon", FormatDuration(c.ReplayHorizonNanos)},
		{"on_unavailable", c.OnUnavailable.String()},
		{"local_limit", local},
		{"timeout", FormatDuration(c.TimeoutNanos)},
		{"retention", retention},
		{"disabled", strconv.FormatBool(c.Disabled)},
	}
}

// classText is a class in one line, without the settings that are as they are by default. It is
// empty for nil.
func classText(c *Class) string {
	if c == nil {
		return ""
	}
	usual := settings(&Class{
		ReplayHorizonNanos: DefaultReplayHorizonNanos,
		TimeoutNanos:       DefaultTimeoutNanos,
	})
	text := limitsText(c.Limits)
	for i, s := range settings(c) {
		if s != usual[i] {
			text += "; " + s.key + " " + s.text
		}
	}
	return text
}

func groupText(g *Group) string {
	if g == nil {
		return ""
	}
	return namesText(g.Classes) + ": " + limitsText(g.Limits)
}

func limitsText(limits []Limit) string {
	texts := make([]string, len(limits))
	for i, l := range limits {
		texts[i] = nameText(l.Name) + " " + limitText(l)
	}
	return strings.Join(texts, ", ")
}

func limitText(l Limit) string {
	return strconv.FormatInt(l.Max, 10) + " per " + FormatDuration(l.WindowNanos)
}

func namesText(names []string) string {
	texts := make([]string, len(names))
	for i, name := range names {
		texts[i] = nameText(name)
	}
	return strings.Join(texts, ", ")
}

// nameText is a name within a path or a list, in quotes when it would be ambiguous without.
func nameText(name string) string { return strings.TrimPrefix(joinPath("", name), ".") }

// versionText is a version label, in quotes when it has spaces or anything that is not printed.
func versionText(version string) string {
	if q := strconv.Quote(version); strings.Contains(version, " ") || len(q) != len(version)+2 {
		return q
	}
	return version
}
