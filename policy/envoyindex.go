package policy

import (
	"cmp"
	"slices"
	"strings"
)

// envoyIndex finds the first of a domain's rules that matches, without trying one after another: by the number of
// entries, and then entry by entry, from the key to what its value may be. It is a tree, of which a search sees each
// node at most once and leaves out those below which there is only what comes after what it has found.
type envoyIndex struct {
	roots [MaxEnvoyEntries + 1]*envoyNode // by the number of entries; nil where no rule has so many
}

// noRule is above the number of every rule.
const noRule = int32(MaxEnvoyRules) + 1

// envoyNode is what the entries up to here lead to.
type envoyNode struct {
	rule  int32 // the first rule that ends here; noRule where none does
	least int32 // the first rule that ends here or below
	keys  table[*envoyKey]
}

// envoyKey is what the values of a key lead to.
type envoyKey struct {
	any      *envoyNode // nil for none
	values   table[*envoyNode]
	prefixes []envoyPrefix // sorted by text
}

// envoyPrefix is a prefix, and the place of the longest other one that it begins with; -1 for none.
type envoyPrefix struct {
	text    string
	shorter int
	node    *envoyNode
}

func newEnvoyNode() *envoyNode { return &envoyNode{rule: noRule, least: noRule} }

// newEnvoyIndex makes the index of rules, those aside that skip tells.
func newEnvoyIndex(rules []EnvoyRule, skip func(i int) bool) *envoyIndex {
	x := &envoyIndex{}
	for i := range rules {
		if n := len(rules[i].Match); n > 0 && n <= MaxEnvoyEntries && i < int(noRule) && !skip(i) {
			x.add(int32(i), rules[i].Match)
		}
	}
	for _, root := range x.roots {
		root.finish()
	}
	return x
}

func skipNone(int) bool { return false }

// add adds a rule, whose number is above those before.
func (x *envoyIndex) add(rule int32, match []EnvoyEntry) {
	at := &x.roots[len(match)]
	if *at == nil {
		*at = newEnvoyNode()
	}
	n := *at
	n.least = min(n.least, rule)
	for i := range match {
		e := &match[i]
		key, known := n.keys.get(e.Key)
		if !known {
			key = &envoyKey{}
			n.keys.put(e.Key, key)
		}
		n = key.child(e)
		n.least = min(n.least, rule)
	}
	n.rule = min(n.rule, rule)
}

// child is the node of an entry, made where there is none. Prefixes are in the order in which they came until finish.
func (k *envoyKey) child(e *EnvoyEntry) *envoyNode {
	switch e.How {
	case MatchValue:
		n, known := k.values.get(e.Value)
		if !known {
			n = newEnvoyNode()
			k.values.put(e.Value, n)
		}
		return n
	case MatchPrefix:
		at, known := slices.BinarySearchFunc(k.prefixes, e.Value, byText)
		if !known {
			k.prefixes = slices.Insert(k.prefixes, at, envoyPrefix{text: e.Value, node: newEnvoyNode()})
		}
		return k.prefixes[at].node
	case MatchAny:
	}
	if k.any == nil {
		k.any = newEnvoyNode()
	}
	return k.any
}

func byText(p envoyPrefix, text string) int { return cmp.Compare(p.text, text) }

// finish links prefixes to shorter ones, here and below, once all are there.
func (n *envoyNode) finish() {
	if n == nil {
		return
	}
	n.keys.each(func(k *envoyKey) {
		var open []int // those that the present one may begin with, each beginning with the one before it
		for i := range k.prefixes {
			p := &k.prefixes[i]
			for len(open) > 0 && !strings.HasPrefix(p.text, k.prefixes[open[len(open)-1]].text) {
				open = open[:len(open)-1]
			}
			p.shorter = -1
			if len(open) > 0 {
				p.shorter = open[len(open)-1]
			}
			open = append(open, i)
			p.node.finish()
		}
		k.values.each((*envoyNode).finish)
		k.any.finish()
	})
}

// longest is the place of the longest prefix that value begins with; -1 for none. It is the last one that is not after
// value, or one that this begins with.
func (k *envoyKey) longest(value string) int {
	at, there := slices.BinarySearchFunc(k.prefixes, value, byText)
	if there {
		return at
	}
	at--
	if at < 0 {
		return -1
	}
	same := common(k.prefixes[at].text, value)
	for at >= 0 && len(k.prefixes[at].text) > same {
		at = k.prefixes[at].shorter
	}
	return at
}

// common is how many bytes two texts begin alike with.
func common(a, b string) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// search looks for the first rule in an index. Without hows it is the one that matches the values; with them, the one
// that matches whatever entries match that have these values so.
type search struct {
	keys, values []string
	hows         []EnvoyMatch
	best         int32
	steps        int // nodes seen, for those who ask what it cost
}

// first is the number of the first rule that matches a descriptor with these keys and values; noRule for none.
func (x *envoyIndex) first(keys, values []string) int32 {
	s := search{keys: keys, values: values, best: noRule}
	return s.in(x)
}

// firstCovering is the number of the first rule that matches all that match does. It is one rule or none: a descriptor
// whose values are like no value and no other prefix of the rules is matched by no rule that does not match all.
func (x *envoyIndex) firstCovering(match []EnvoyEntry) int32 {
	s := search{best: noRule}
	for i := range match {
		e := &match[i]
		s.keys, s.values, s.hows = append(s.keys, e.Key), append(s.values, e.Value), append(s.hows, e.How)
	}
	return s.in(x)
}

func (s *search) in(x *envoyIndex) int32 {
	if n := len(s.keys); n < len(x.roots) {
		s.visit(x.roots[n], 0)
	}
	return s.best
}

// visit goes on from a node, which the first depth entries have led to.
func (s *search) visit(n *envoyNode, depth int) {
	if n == nil || n.least >= s.best {
		return
	}
	s.steps++
	if depth == len(s.keys) {
		s.best = n.rule
		return
	}
	k, known := n.keys.get(s.keys[depth])
	if !known {
		return
	}
	value, how := s.values[depth], MatchValue
	if s.hows != nil {
		how = s.hows[depth]
	}
	if how == MatchValue && len(value) <= MaxEnvoyValueBytes {
		if exact, there := k.values.get(value); there {
			s.visit(exact, depth+1)
		}
	}
	if how != MatchAny {
		for at := k.longest(value); at >= 0; at = k.prefixes[at].shorter {
			s.visit(k.prefixes[at].node, depth+1)
		}
	}
	s.visit(k.any, depth+1)
}

// table finds things by a text: a short list, or a hash where there are many.
type table[V any] struct {
	few  []tableEntry[V]
	many map[string]V
}

type tableEntry[V any] struct {
	text string
	v    V
}

// fewEntries is how many are looked through one by one.
const fewEntries = 8

func (t *table[V]) get(text string) (v V, there bool) {
	if t.many != nil {
		v, there = t.many[text]
		return v, there
	}
	for i := range t.few {
		if t.few[i].text == text {
			return t.few[i].v, true
		}
	}
	return v, false
}

// put adds what is not there.
func (t *table[V]) put(text string, v V) {
	switch {
	case t.many != nil:
		t.many[text] = v
	case len(t.few) < fewEntries:
		t.few = append(t.few, tableEntry[V]{text, v})
	default:
		t.many = make(map[string]V, 2*fewEntries)
		for _, e := range t.few {
			t.many[e.text] = e.v
		}
		t.many[text], t.few = v, nil
	}
}

func (t *table[V]) each(visit func(V)) {
	for _, e := range t.few {
		visit(e.v)
	}
	for _, v := range t.many {
		visit(v)
	}
}
