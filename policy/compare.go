package policy

import (
	"slices"
	"strconv"
	"strings"
)

// ChangeKind says what became of a part of a policy.
type ChangeKind uint8

// The kinds of changes.
const (
	Added ChangeKind = iota + 1
	Removed
	Changed
)

// String is the kind in one word.
func (k ChangeKind) String() string {
	switch k {
	case Added:
		return "added"
	case Removed:
		return "removed"
	case Changed:
		return "changed"
	}
	return "unknown"
}

// Change is one difference between two policies.
type Change struct {
	// Path names the part as the file nests it, limits by their names:
	// classes.convert.limits.per-minute.limit. A name that would be ambiguous is in quotes.
	Path string
	Kind ChangeKind
	// Old and New are the values as text. Old is empty for what was added, New for what was removed.
	Old, New string
}

// String is the change in one line.
func (c Change) String() string {
	switch c.Kind {
	case Added:
		return "+ " + c.Path + ": " + c.New
	case Removed:
		return "- " + c.Path + ": " + c.Old
	}
	return "~ " + c.Path + ": " + c.Old + " -> " + c.New
}

// Compare returns what differs between two policies, in the order version, default, classes, tiers,
// principals, groups, envoy, and within each of these by name. It is empty when the policies are equal.
func Compare(old, new *Policy) []Change {
	c := &comparison{}
	if old.digest == new.digest {
		return nil
	}
	c.value("version", versionText(old.Version), versionText(new.Version))
	c.class(DefaultClass, &old.Default, &new.Default)
	union(old.classNames, new.classNames, func(name string) {
		path := joinPath("classes", name)
		before, after := old.Classes[name], new.Classes[name]
		if before == nil || after == nil {
			c.whole(path, classText(before), classText(after))
			return
		}
		c.class(path, before, after)
	})
	c.rules("tiers", old.tierNames, new.tierNames, old.Tiers, new.Tiers)
	c.rules("principals", old.principalNames, new.principalNames, old.Principals, new.Principals)
	union(old.groupNames, new.groupNames, func(name string) {
		path := joinPath("groups", name)
		before, after := old.Groups[name], new.Groups[name]
		if before == nil || after == nil {
			c.whole(path, groupText(before), groupText(after))
			return
		}
		c.group(path, before, after)
	})
	union(old.envoyNames, new.envoyNames, func(name string) {
		c.domain(joinPath("envoy", name), old.Envoy[name], new.Envoy[name])
	})
	return c.changes
}

type comparison struct {
	changes []Change
}

// value notes a setting that both have.
func (c *comparison) value(path, old, new string) {
	if old != new {
		c.changes = append(c.changes, Change{path, Changed, old, new})
	}
}

// whole notes a part that only one of the two has; the other's text is empty.
func (c *comparison) whole(path, old, new string) {
	kind := Added
	if new == "" {
		kind = Removed
	}
	c.changes = append(c.changes, Change{path, kind, old, new})
}

func (c *comparison) class(path string, old, new *Class) {
	c.limits(joinPath(path, "limits"), old.Limits, new.Limits)
	before, after := settings(old), settings(new)
	for i := range before {
		path, old, new := joinPath(path, before[i].key), before[i].text, after[i].text
		switch {
		case old == new:
		case old == "" || new == "":
			c.whole(path, old, new)
		default:
			c.value(path, old, new)
		}
	}
}

// limits pairs limits by name. A changed order is told too: it decides which of two limits with
// equal deadlines a denial names.
func (c *comparison) limits(path string, old, new []Limit) {
	if slices.Equal(old, new) {
		return
	}
	var oldOrder, newOrder []string
	for _, before := range old {
		i := slices.IndexFunc(new, func(l Limit) bool { return l.Name == before.Name })
		if i < 0 {
			c.whole(joinPath(path, before.Name), limitText(before), "")
			continue
		}
		oldOrder = append(oldOrder, before.Name)
		at := joinPath(path, before.Name)
		c.value(at+".limit", strconv.FormatInt(before.Max, 10), strconv.FormatInt(new[i].Max, 10))
		c.value(at+".window",
			FormatDuration(before.WindowNanos), FormatDuration(new[i].WindowNanos))
	}
	for _, after := range new {
		if named(old, after.Name) {
			newOrder = append(newOrder, after.Name)
		} else {
			c.whole(joinPath(path, after.Name), "", limitText(after))
		}
	}
	if !slices.Equal(oldOrder, newOrder) {
		c.value(path, namesText(oldOrder), namesText(newOrder))
	}
}

func (c *comparison) rules(
	section string, oldNames, newNames []string, old, new map[string]map[string][]Limit,
) {
	union(oldNames, newNames, func(name string) {
		union(sortedKeys(old[name]), sortedKeys(new[name]), func(class string) {
			before, after := old[name][class], new[name][class]
			if slices.Equal(before, after) {
				return
			}
			path := joinPath(joinPath(section, name), class)
			if before == nil || after == nil {
				c.whole(path, limitsText(before), limitsText(after))
				return
			}
			c.limits(joinPath(path, "limits"), before, after)
		})
	})
}

func (c *comparison) group(path string, old, new *Group) {
	union(old.Classes, new.Classes, func(class string) {
		at := joinPath(joinPath(path, "classes"), class)
		if !slices.Contains(new.Classes, class) {
			c.whole(at, "member", "")
		} else if !slices.Contains(old.Classes, class) {
			c.whole(at, "", "member")
		}
	})
	c.limits(joinPath(path, "limits"), old.Limits, new.Limits)
}

// domain notes what became of a domain of Envoy's, as a whole: the order of its rules decides.
func (c *comparison) domain(path string, old, new *EnvoyDomain) {
	switch {
	case old == nil:
		c.whole(path, "", new.text())
	case new == nil:
		c.whole(path, old.text(), "")
	default:
		c.value(path, old.text(), new.text())
	}
}

// union calls visit for each name of two sorted lists, in order, once.
func union(a, b []string, visit func(name string)) {
	for len(a) > 0 || len(b) > 0 {
		switch {
		case len(b) == 0 || len(a) > 0 && a[0] < b[0]:
			visit(a[0])
			a = a[1:]
		case len(a) == 0 || b[0] < a[0]:
			visit(b[0])
			b = b[1:]
		default:
			visit(a[0])
			a, b = a[1:], b[1:]
		}
	}
}

// joinPath appends a name to a path, in quotes when it would be ambiguous without.
func joinPath(path, name string) string {
	for i := range len(name) {
		switch b := name[i]; {
		case 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z', '0' <= b && b <= '9':
		case strings.IndexByte("-_/@+:", b) >= 0:
		default:
			return path + "." + strconv.Quote(name)
		}
	}
	if name == "" {
		name = `""`
	}
	return path + "." + name
}
