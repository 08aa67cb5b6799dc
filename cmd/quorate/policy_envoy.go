package main

import (
	"strings"

	"github.com/quorate/quorate/policy"
)

// domainFile is a domain of Envoy's in the fields of a policy file.
type domainFile struct {
	RequestID string           `json:"request_id,omitempty"`
	Unmatched string           `json:"unmatched,omitempty"`
	Rules     []domainRuleFile `json:"rules"`
}

type domainRuleFile struct {
	Match     []entryFile `json:"match"`
	Class     string      `json:"class,omitempty"`
	Principal []string    `json:"principal,omitempty"`
	Shared    string      `json:"shared,omitempty"`
	Tier      string      `json:"tier,omitempty"`
	Unlimited bool        `json:"unlimited,omitempty"`
	Name      string      `json:"name,omitempty"`
	Replaces  []string    `json:"replaces,omitempty"`
}

type entryFile struct {
	Key    string `json:"key"`
	Value  string `json:"value,omitempty"`
	Prefix string `json:"prefix,omitempty"`
}

const unmatchedAllow = "allow"

// domainFilesOf leaves out what is as it is by default, as the YAML does.
func domainFilesOf(domains map[string]*policy.EnvoyDomain) map[string]domainFile {
	out := make(map[string]domainFile, len(domains))
	for name, d := range domains {
		f := domainFile{RequestID: d.RequestID, Rules: make([]domainRuleFile, len(d.Rules))}
		if d.PassUnmatched {
			f.Unmatched = unmatchedAllow
		}
		for i := range d.Rules {
			r := &d.Rules[i]
			f.Rules[i] = domainRuleFile{Class: r.Class, Principal: r.Principal, Shared: r.Shared, Tier: r.Tier,
				Unlimited: r.Unlimited, Name: r.Name, Replaces: r.Replaces, Match: make([]entryFile, len(r.Match))}
			for j, e := range r.Match {
				f.Rules[i].Match[j].Key = e.Key
				switch e.How {
				case policy.MatchValue:
					f.Rules[i].Match[j].Value = e.Value
				case policy.MatchPrefix:
					f.Rules[i].Match[j].Prefix = e.Value
				case policy.MatchAny:
				}
			}
		}
		out[name] = f
	}
	return out
}

func (pw *policyWriter) envoy(domains map[string]*policy.EnvoyDomain) {
	if len(domains) == 0 {
		return
	}
	pw.line(0, "envoy:")
	files := domainFilesOf(domains)
	for _, name := range sortedNames(files) {
		f := files[name]
		pw.key(1, name)
		if f.RequestID != "" {
			pw.line(2, "request_id: "+yamlName(f.RequestID))
		}
		if f.Unmatched != "" {
			pw.line(2, "unmatched: "+f.Unmatched)
		}
		pw.line(2, "rules:")
		for i := range f.Rules {
			pw.line(3, "- "+yamlRule(&f.Rules[i]))
		}
	}
}

func yamlRule(r *domainRuleFile) string {
	var entries, parts []string
	for _, e := range r.Match {
		text := "{key: " + yamlName(e.Key)
		if e.Value != "" {
			text += ", value: " + yamlName(e.Value)
		}
		if e.Prefix != "" {
			text += ", prefix: " + yamlName(e.Prefix)
		}
		entries = append(entries, text+"}")
	}
	parts = append(parts, "match: ["+strings.Join(entries, ", ")+"]")
	name := func(key, value string) {
		if value != "" {
			parts = append(parts, key+": "+yamlName(value))
		}
	}
	names := func(key string, values []string) {
		if len(values) > 0 {
			texts := make([]string, len(values))
			for i, v := range values {
				texts[i] = yamlName(v)
			}
			parts = append(parts, key+": ["+strings.Join(texts, ", ")+"]")
		}
	}
	name("class", r.Class)
	names("principal", r.Principal)
	name("shared", r.Shared)
	name("tier", r.Tier)
	if r.Unlimited {
		parts = append(parts, "unlimited: true")
	}
	name("name", r.Name)
	names("replaces", r.Replaces)
	return "{" + strings.Join(parts, ", ") + "}"
}
