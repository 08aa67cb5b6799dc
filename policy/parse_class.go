package policy

import "strings"

// class reads a class, or default, whose key is at key. It returns the node of its limits, 0 when
// there are none.
func (ps *parser) class(key, i int32, c *Class) (limits int32) {
	c.ReplayHorizonNanos = DefaultReplayHorizonNanos
	c.TimeoutNanos = DefaultTimeoutNanos
	f, ok := ps.fields(i, "a class", classKeys, nil)
	if !ok {
		return 0
	}
	limits = f[0].value
	if f[0].key == 0 {
		ps.missingLimits(key)
	} else {
		c.Limits = ps.limits(limits)
	}
	timeoutOK, horizonOK := true, true
	if f[4].key != 0 {
		c.TimeoutNanos, timeoutOK = ps.duration(f[4].value, 1, 1<<63-1, timeoutBounds)
	}
	if f[1].key != 0 {
		c.ReplayHorizonNanos, horizonOK = ps.duration(
			f[1].value, MinReplayHorizonNanos, MaxReplayHorizonNanos, horizonBounds)
	}
	if timeoutOK && horizonOK {
		if fault := horizonFault(c.ReplayHorizonNanos, c.TimeoutNanos); fault != "" {
			at := f[1].value
			if at == 0 {
				at = f[4].value
			}
			ps.problem(at, "%s", fault)
		}
	}
	if f[5].key != 0 {
		c.RetentionNanos, _ = ps.duration(f[5].value, 1, MaxWindowNanos, retentionBounds)
	}
	if f[6].key != 0 {
		c.Disabled = ps.boolean(f[6].value)
	}
	ps.failureMode(f[2], f[3], c)
	return limits
}

func (ps *parser) failureMode(mode, local part, c *Class) {
	modeOK := true
	if mode.key != 0 {
		c.OnUnavailable, modeOK = ps.mode(mode.value)
	}
	if local.key != 0 {
		c.LocalLimit = ps.localLimit(local.value)
	}
	switch {
	case !modeOK:
	case c.OnUnavailable == FailLocal && local.key == 0:
		ps.problem(mode.value, "on_unavailable: local needs a local limit; "+
			"write local_limit: {limit: 1, window: 60s}")
	case c.OnUnavailable != FailLocal && local.key != 0:
		ps.problem(local.key, "local_limit is used with on_unavailable: local only; "+
			"write that or remove local_limit")
	}
}

func (ps *parser) mode(i int32) (m FailureMode, ok bool) {
	n := ps.at(i)
	if n.kind == kindScalar && n.tag == tagString {
		for _, m := range []FailureMode{FailDeny, FailAllow, FailLocal} {
			if n.text == m.String() {
				return m, true
			}
		}
	}
	if n.kind != kindRefused {
		ps.problem(i, "on_unavailable must be deny, allow or local, found %s", describe(n))
	}
	return FailDeny, false
}

func (ps *parser) localLimit(i int32) (l Limit) {
	f, ok := ps.fields(i, `"local_limit"`, localKeys, func(key string) string {
		if key == "name" {
			return "a local limit has no name; remove it"
		}
		return ""
	})
	if ok {
		l.Max = ps.amount(i, f[0])
		l.WindowNanos = ps.window(i, f[1])
	}
	return l
}

func (ps *parser) groups(i int32) {
	seenNames := make(map[string]bool)
	seen := func(name string) bool { return seenNames[name] }
	ps.entries(i, "groups", "a group's name", MaxNameBytes, seen, func(name string, at part) bool {
		if len(seenNames) == MaxClasses {
			ps.problem(at.key, "more than %d groups; at most %d are allowed", MaxClasses, MaxClasses)
			return false
		}
		seenNames[name] = true
		ps.group(strings.Clone(name), at)
		return true
	})
}

func (ps *parser) group(name string, at part) {
	f, ok := ps.fields(at.value, "a group", groupKeys, func(key string) string {
		for _, k := range classKeys {
			if k == key {
				return quoted(key) + " belongs to a class, not to a group; move it to the class"
			}
		}
		return ""
	})
	if !ok {
		return
	}
	g := &Group{Name: name}
	if f[1].key == 0 {
		ps.missingLimits(at.key)
	} else {
		g.Limits = ps.limits(f[1].value)
	}
	if f[0].key == 0 {
		ps.problem(at.key, `"classes" is missing; write the group's classes as [convert, export]`)
	} else {
		ps.members(f[0].value, g)
	}
	ps.p.Groups[name] = g
}

func (ps *parser) members(i int32, g *Group) {
	if !ps.isKind(i, kindSequence, "the classes of a group", "a list") {
		return
	}
	if ps.end(i) == i+1 {
		ps.problem(i, "a group needs at least one class; list some or remove the group")
	}
	for item := i + 1; item < ps.end(i); item = ps.next(item) {
		name, ok := ps.name(item, "a class name", MaxClassBytes)
		class, listed := ps.classNames[name]
		switch {
		case !ok:
		case name == DefaultClass:
			ps.problem(item, "default cannot be in a group; name listed classes only")
		case !listed:
			ps.unlisted(item, name)
		case ps.groupOf[class] == g:
			ps.problem(item, "the class %s is in this group already; remove one", quoted(name))
		case ps.groupOf[class] != nil:
			ps.problem(item, "the class %s is in the group %s already; a class is in at most one",
				quoted(name), quoted(ps.groupOf[class].Name))
		default:
			ps.groupOf[class] = g
			g.Classes = append(g.Classes, class)
		}
	}
}

// limits reads the limits of a rule or a group. It has one for each of the first items, even where
// an item has problems.
func (ps *parser) limits(i int32) []Limit {
	if !ps.isKind(i, kindSequence, `"limits"`, "a list") {
		return nil
	}
	count := ps.parts(i)
	if count == 0 {
		ps.problem(i, "a rule needs at least one limit; "+
			"write [{name: per-minute, limit: 3, window: 60s}]")
	}
	limits := make([]Limit, 0, min(count, MaxLimitsPerRule))
	for item := i + 1; item < ps.end(i); item = ps.next(item) {
		if len(limits) == MaxLimitsPerRule {
			ps.problem(item, "%d limits in a rule; at most %d are allowed",
				count, MaxLimitsPerRule)
			break
		}
		l, at := ps.limit(item)
		if l.Name != "" && named(limits, l.Name) {
			ps.problem(at, "two limits are named %s; give each a name of its own", quoted(l.Name))
		}
		limits = append(limits, l)
	}
	return limits
}

// limit reads one limit; at is the node of its name.
func (ps *parser) limit(i int32) (l Limit, at int32) {
	f, ok := ps.fields(i, "a limit", limitKeys, nil)
	if !ok {
		return l, i
	}
	if at = f[0].value; at == 0 {
		ps.problem(i, `a limit needs "name"; write name: per-minute`)
	} else if name, ok := ps.name(at, "the name of a limit", MaxNameBytes); ok {
		l.Name = ps.intern(name)
	}
	l.Max = ps.amount(i, f[1])
	l.WindowNanos = ps.window(i, f[2])
	return l, at
}

// intern keeps one copy of each name, which does not hold the file's text in memory.
func (ps *parser) intern(name string) string {
	interned, ok := ps.interned[name]
	if !ok {
		interned = strings.Clone(name)
		ps.interned[interned] = interned
	}
	return interned
}

func (ps *parser) amount(limit int32, f part) int64 {
	if f.key == 0 {
		ps.problem(limit, `a limit needs "limit"; write a whole number such as limit: 3`)
		return 0
	}
	return ps.integer(f.value)
}

func (ps *parser) window(limit int32, f part) int64 {
	if f.key == 0 {
		ps.problem(limit, `a limit needs "window"; write window: 60s, 5m or 1d`)
		return 0
	}
	nanos, _ := ps.duration(f.value, MinWindowNanos, MaxWindowNanos, windowBounds)
	return nanos
}
