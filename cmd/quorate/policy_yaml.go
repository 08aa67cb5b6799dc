package main

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/quorate/quorate/policy"
)

// maxSimpleKey is how long a key may be without the mark "?" before it: YAML's readers look no further than 1,024
// characters for the colon.
const maxSimpleKey = 1000

// policyWriter writes a policy as a file that validates and means the same: keys in the order of the format, names
// sorted, settings that are as they are by default left out. Equal policies have equal files.
type policyWriter struct {
	w *bufio.Writer // keeps the first error, which Flush tells
}

// writePolicyYAML writes p as a policy file.
func writePolicyYAML(w io.Writer, p *policy.Policy) error {
	pw := policyWriter{bufio.NewWriter(w)}
	pw.line(0, "version: "+yamlName(p.Version))
	pw.line(0, "default:")
	pw.class(1, &p.Default)
	if len(p.Classes) > 0 {
		pw.line(0, "classes:")
		for _, name := range sortedNames(p.Classes) {
			pw.key(1, name)
			pw.class(2, p.Classes[name])
		}
	}
	pw.rules("tiers", p.Tiers)
	pw.rules("principals", p.Principals)
	if len(p.Groups) > 0 {
		pw.line(0, "groups:")
		for _, name := range sortedNames(p.Groups) {
			pw.key(1, name)
			pw.group(2, p.Groups[name])
		}
	}
	pw.envoy(p.Envoy)
	return pw.w.Flush()
}

func sortedNames[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// line writes a line at a depth of nesting. What fails is told by Flush.
func (pw *policyWriter) line(depth int, text string) {
	for range depth {
		_, _ = pw.w.WriteString("  ")
	}
	_, _ = pw.w.WriteString(text)
	_ = pw.w.WriteByte('\n')
}

// key writes a name as a key whose value follows in deeper lines.
func (pw *policyWriter) key(depth int, name string) {
	if text := yamlName(name); len(text) <= maxSimpleKey {
		pw.line(depth, text+":")
	} else {
		pw.line(depth, "? "+text)
		pw.line(depth, ":")
	}
}

func (pw *policyWriter) class(depth int, c *policy.Class) {
	pw.limits(depth, c.Limits)
	for _, s := range classSettings(c) {
		pw.line(depth, s.key+": "+s.yaml)
	}
}

// classSetting is a setting that is not as it is by default.
type classSetting struct{ key, yaml string }

func classSettings(c *policy.Class) (out []classSetting) {
	set := func(key, yaml string) { out = append(out, classSetting{key, yaml}) }
	if c.ReplayHorizonNanos != policy.DefaultReplayHorizonNanos {
		set("replay_horizon", policy.FormatDuration(c.ReplayHorizonNanos))
	}
	if c.OnUnavailable != policy.FailDeny {
		set("on_unavailable", c.OnUnavailable.String())
	}
	if c.OnUnavailable == policy.FailLocal {
		set("local_limit", "{"+yamlAmount(c.LocalLimit)+"}")
	}
	if c.TimeoutNanos != policy.DefaultTimeoutNanos {
		set("timeout", policy.FormatDuration(c.TimeoutNanos))
	}
	if c.RetentionNanos != 0 {
		set("retention", policy.FormatDuration(c.RetentionNanos))
	}
	if c.Disabled {
		set("disabled", "true")
	}
	return out
}

func (pw *policyWriter) limits(depth int, limits []policy.Limit) {
	if len(limits) == 1 {
		pw.line(depth, "limits: ["+yamlLimit(limits[0])+"]")
		return
	}
	pw.line(depth, "limits:")
	for _, l := range limits {
		pw.line(depth+1, "- "+yamlLimit(l))
	}
}

// rules writes tiers or principals, of which there can be a million.
func (pw *policyWriter) rules(section string, rules map[string]map[string][]policy.Limit) {
	if len(rules) == 0 {
		return
	}
	pw.line(0, section+":")
	for _, who := range sortedNames(rules) {
		pw.key(1, who)
		for _, class := range sortedNames(rules[who]) {
			pw.key(2, class)
			pw.limits(3, rules[who][class])
		}
	}
}

func (pw *policyWriter) group(depth int, g *policy.Group) {
	names := make([]string, len(g.Classes))
	for i, name := range g.Classes {
		names[i] = yamlName(name)
	}
	pw.line(depth, "classes: ["+strings.Join(names, ", ")+"]")
	pw.limits(depth, g.Limits)
}

func yamlLimit(l policy.Limit) string {
	return "{name: " + yamlName(l.Name) + ", " + yamlAmount(l) + "}"
}

func yamlAmount(l policy.Limit) string {
	return fmt.Sprintf("limit: %d, window: %s", l.Max, policy.FormatDuration(l.WindowNanos))
}

// yamlName writes a name plainly where every reader of YAML, of any version, takes it for the same string, and in
// double quotes elsewhere.
func yamlName(name string) string {
	if plainName(name) {
		return name
	}
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range name {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r <= 0xff:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r <= 0xffff:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

func plainName(name string) bool {
	switch strings.ToLower(name) {
	case "", "y", "n", "yes", "no", "on", "off", "true", "false", "null":
		return false
	}
	for i := range len(name) {
		switch b := name[i]; {
		case 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z', b == '_':
		case i > 0 && ('0' <= b && b <= '9' || b == '-' || b == '.' || b == '/'):
		default:
			return false
		}
	}
	return true
}

// policyFile is a policy in the fields of its file, for JSON, which validates as well.
type policyFile struct {
	Version    string                         `json:"version"`
	Default    classFile                      `json:"default"`
	Classes    map[string]classFile           `json:"classes,omitempty"`
	Tiers      map[string]map[string]ruleFile `json:"tiers,omitempty"`
	Principals map[string]map[string]ruleFile `json:"principals,omitempty"`
	Groups     map[string]groupFile           `json:"groups,omitempty"`
	Envoy      map[string]domainFile          `json:"envoy,omitempty"`
}

type classFile struct {
	Limits        []limitFile `json:"limits"`
	ReplayHorizon string      `json:"replay_horizon,omitempty"`
	OnUnavailable string      `json:"on_unavailable,omitempty"`
	LocalLimit    *limitFile  `json:"local_limit,omitempty"`
	Timeout       string      `json:"timeout,omitempty"`
	Retention     string      `json:"retention,omitempty"`
	Disabled      bool        `json:"disabled,omitempty"`
}

type ruleFile struct {
	Limits []limitFile `json:"limits"`
}

type groupFile struct {
	Classes []string    `json:"classes"`
	Limits  []limitFile `json:"limits"`
}

type limitFile struct {
	Name   string `json:"name,omitempty"`
	Limit  int64  `json:"limit"`
	Window string `json:"window"`
}

func fileOf(p *policy.Policy) policyFile {
	f := policyFile{
		Version: p.Version, Default: classFileOf(&p.Default), Classes: map[string]classFile{},
		Tiers: ruleFilesOf(p.Tiers), Principals: ruleFilesOf(p.Principals), Groups: map[string]groupFile{},
		Envoy: domainFilesOf(p.Envoy),
	}
	for name, c := range p.Classes {
		f.Classes[name] = classFileOf(c)
	}
	for name, g := range p.Groups {
		f.Groups[name] = groupFile{g.Classes, limitFilesOf(g.Limits)}
	}
	return f
}

// classFileOf leaves out what is as it is by default, as the YAML does.
func classFileOf(c *policy.Class) classFile {
	f := classFile{Limits: limitFilesOf(c.Limits), Disabled: c.Disabled}
	for _, s := range classSettings(c) {
		switch s.key {
		case "replay_horizon":
			f.ReplayHorizon = s.yaml
		case "on_unavailable":
			f.OnUnavailable = s.yaml
		case "local_limit":
			f.LocalLimit = &limitFile{Limit: c.LocalLimit.Max, Window: policy.FormatDuration(c.LocalLimit.WindowNanos)}
		case "timeout":
			f.Timeout = s.yaml
		case "retention":
			f.Retention = s.yaml
		}
	}
	return f
}

func ruleFilesOf(rules map[string]map[string][]policy.Limit) map[string]map[string]ruleFile {
	out := make(map[string]map[string]ruleFile, len(rules))
	for who, byClass := range rules {
		made := make(map[string]ruleFile, len(byClass))
		for class, limits := range byClass {
			made[class] = ruleFile{limitFilesOf(limits)}
		}
		out[who] = made
	}
	return out
}

func limitFilesOf(limits []policy.Limit) []limitFile {
	out := make([]limitFile, len(limits))
	for i, l := range limits {
		out[i] = limitFile{l.Name, l.Max, policy.FormatDuration(l.WindowNanos)}
	}
	return out
}

// limitsText writes limits in a line, for people.
func limitsText(limits []policy.Limit) string {
	words := make([]string, len(limits))
	for i, l := range limits {
		words[i] = yamlName(l.Name) + " " + strconv.FormatInt(l.Max, 10) + " per " +
			policy.FormatDuration(l.WindowNanos)
	}
	return strings.Join(words, ", ")
}
