package main

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/quorate/quorate/policy"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
)

// maxShownRules bounds the overrides in a table; a policy can have a million.
const maxShownRules = 1000

// revisionArg reads the argument at i as a revision; 0 when it is not given.
func revisionArg(cmd *cobra.Command, args []string, i int) (uint64, error) {
	if i >= len(args) {
		return 0, nil
	}
	n, ok := revisionIn(args[i])
	if !ok {
		return 0, usagef(cmd, "%q is no revision: give a number from 1 on, as `quorate policy list` shows them", args[i])
	}
	return n, nil
}

func revisionIn(text string) (number uint64, ok bool) {
	n, err := strconv.ParseUint(text, 10, 64)
	return n, err == nil && n > 0
}

// download is the policy of a revision; 0 is the one in force.
func download(ctx context.Context, s *session, revision uint64) (revisionView, *policy.Policy, error) {
	// A long policy may take its time, as long as it comes on.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	body := arriving{idle: time.AfterFunc(s.timeout, cancel), limit: s.timeout}
	defer body.idle.Stop()
	r, err := s.DownloadPolicy(ctx, &quoratev1.DownloadPolicyRequest{Revision: revision}, &body)
	if err != nil {
		return revisionView{}, nil, err
	}
	p, err := policy.Decode(body.Bytes())
	if err != nil {
		return revisionView{}, nil, fmt.Errorf("revision %d as the node sent it: %w; check that versions agree",
			r.GetNumber(), err)
	}
	return revisionOf(r), p, nil
}

// arriving collects what arrives, and puts off idle for limit each time.
type arriving struct {
	bytes.Buffer
	idle  *time.Timer
	limit time.Duration
}

func (a *arriving) Write(b []byte) (int, error) {
	a.idle.Reset(a.limit)
	return a.Buffer.Write(b)
}

func newPolicyShow(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "show [REVISION]",
		Short: "Show a policy",
		Long: `show shows the policy of REVISION, or the one in force. -o yaml and -o json print it as a policy file: it
validates, and can be changed and applied. Settings that are as they are by default are left out.`,
		Example: "  quorate policy show 7 -o yaml > policy.yaml",
		Args:    usageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			revision, err := revisionArg(cmd, args, 0)
			if err != nil {
				return err
			}
			return o.withSession(cmd, func(ctx context.Context, s *session) error {
				r, p, err := download(ctx, s, revision)
				if err != nil {
					return err
				}
				return o.printPolicy(cmd, r, p)
			})
		},
	}
}

func (o *options) printPolicy(cmd *cobra.Command, r revisionView, p *policy.Policy) error {
	w := cmd.OutOrStdout()
	switch o.output {
	case outputYAML:
		return writePolicyYAML(w, p)
	case outputJSON:
		return o.output.print(w, fileOf(p), nil)
	}
	fmt.Fprintf(w, "revision %s: %s by %s at %s\n", r, r.Kind, dash(r.Author), timeText(r.At))
	if r.Comment != "" {
		fmt.Fprintf(w, "comment: %s\n", r.Comment)
	}
	fmt.Fprintln(w)
	more := 0
	err := o.output.print(w, nil, func(t table.Writer) {
		t.AppendHeader(table.Row{"for", "class", "limits", "settings"})
		more = appendPolicy(t, p)
	})
	if err == nil && more > 0 {
		fmt.Fprintf(w, "and %s: -o yaml has them\n", count(more, "more override", "more overrides"))
	}
	return err
}

// appendPolicy fills the table of a policy, and returns how many overrides are left out.
func appendPolicy(t table.Writer, p *policy.Policy) (more int) {
	class := func(name string, c *policy.Class) {
		settings := ""
		for _, s := range classSettings(c) {
			settings += s.key + ": " + s.yaml + "  "
		}
		t.AppendRow(table.Row{"all", yamlName(name), limitsText(c.Limits), dash(settings)})
	}
	class(policy.DefaultClass, &p.Default)
	for _, name := range sortedNames(p.Classes) {
		class(name, p.Classes[name])
	}
	for _, name := range sortedNames(p.Groups) {
		g := p.Groups[name]
		for i, member := range g.Classes {
			text := "with the above"
			if i == 0 {
				text = limitsText(g.Limits)
			}
			t.AppendRow(table.Row{"group " + yamlName(name), yamlName(member), text, "-"})
		}
	}
	shown := 0
	for _, section := range []struct {
		word  string
		rules map[string]map[string][]policy.Limit
	}{{"tier ", p.Tiers}, {"principal ", p.Principals}} {
		for _, who := range sortedNames(section.rules) {
			for _, class := range sortedNames(section.rules[who]) {
				if shown == maxShownRules {
					more++
					continue
				}
				shown++
				t.AppendRow(table.Row{section.word + yamlName(who), yamlName(class), limitsText(section.rules[who][class]), "-"})
			}
		}
	}
	return more
}
