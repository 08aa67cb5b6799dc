package disk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/quorate/quorate/jepsen/process"
)

// pageSize is how many revisions or audit records are asked for at a time.
const pageSize = 1000

// ActsAccount is what became of an operator's acts.
type ActsAccount struct {
	Made         int
	Acknowledged int
	Done         int      // those that are there now, acknowledged or not
	Lost         []string // acknowledged ones that are not there any more, or not as they were acknowledged
}

// String is one line.
func (a ActsAccount) String() string {
	return fmt.Sprintf("an operator made %d changes, acknowledged %d, there are %d, lost %d",
		a.Made, a.Acknowledged, a.Done, len(a.Lost))
}

// Audit accounts for all acts of paused or stopped ones, on a cluster that serves. It fails when it could not get
// the answers, and when the history of policies, the tokens, the audit trail and the policies' bodies contradict
// one another, or a node cannot show the policy in force. Lost acts are no error of it.
func (a *Acts) Audit(ctx context.Context) (ActsAccount, error) {
	a.mu.Lock()
	list := slices.Clone(a.list)
	account := ActsAccount{Made: len(list), Acknowledged: a.acknowledged}
	a.mu.Unlock()
	revisions, err := a.cluster.history(ctx)
	if err != nil {
		return account, err
	}
	var tokens struct {
		Tokens []Token `json:"tokens"`
	}
	if err := a.cluster.ask(ctx, &tokens, "token", "list", "--timeout", "10s"); err != nil {
		return account, err
	}
	trail, err := a.cluster.trail(ctx)
	if err != nil {
		return account, err
	}
	for _, made := range list {
		done := made.there(revisions, tokens.Tokens)
		if done {
			account.Done++
		} else if made.acknowledged {
			account.Lost = append(account.Lost, fmt.Sprintf("%+v", made))
		}
	}
	return account, errors.Join(
		agree(revisions, tokens.Tokens, trail), a.cluster.showEverywhere(ctx, revisions[0]),
	)
}

// there reports whether an act's effect is there, as it was acknowledged.
func (made act) there(revisions []Revision, tokens []Token) bool {
	return slices.ContainsFunc(revisions, func(r Revision) bool {
		return r.Version == made.name && (!made.acknowledged || r.Number == made.revision)
	}) || slices.ContainsFunc(tokens, func(t Token) bool {
		return t.Name == made.name && (!made.acknowledged || t.ID == made.token)
	})
}

// history is the history of policies, the newest first: without gaps, from the first on.
func (c *Cluster) history(ctx context.Context) (all []Revision, err error) {
	before := uint64(0)
	for before != 1 {
		var page struct {
			Revisions []Revision `json:"revisions"`
		}
		if err := c.ask(ctx, &page, "policy", "list", "--limit", fmt.Sprint(pageSize),
			"--before", fmt.Sprint(before), "--timeout", "10s"); err != nil {
			return nil, err
		}
		if len(page.Revisions) == 0 {
			return nil, fmt.Errorf("policy list: nothing is older than revision %d", before)
		}
		for _, r := range page.Revisions {
			if before != 0 && r.Number != before-1 {
				return nil, fmt.Errorf("policy list: revision %d follows on %d", r.Number, before)
			}
			before = r.Number
		}
		all = append(all, page.Revisions...)
	}
	return all, nil
}

// trail is the audit trail, the newest first.
func (c *Cluster) trail(ctx context.Context) (all []AuditRecord, err error) {
	before := uint64(0)
	for {
		var page struct {
			Records []AuditRecord `json:"records"`
			Next    uint64        `json:"next"`
		}
		if err := c.ask(ctx, &page, "audit", "--limit", fmt.Sprint(pageSize),
			"--before", fmt.Sprint(before), "--timeout", "10s"); err != nil {
			return nil, err
		}
		for _, r := range page.Records {
			if len(all) > 0 && r.Index >= all[len(all)-1].Index {
				return nil, fmt.Errorf("audit: record %d follows on %d", r.Index, all[len(all)-1].Index)
			}
			all = append(all, r)
		}
		if page.Next == 0 {
			return all, nil
		}
		before = page.Next
	}
}

// agree checks that each revision and each token has one record of the audit trail that says it was made, and
// that each such record has one of them.
func agree(revisions []Revision, tokens []Token, trail []AuditRecord) error {
	there := map[string]int{}
	for _, r := range revisions {
		there["policy.publish policy "+r.Version]++
	}
	for _, t := range tokens {
		there["token.create token "+t.ID]++
	}
	told := map[string]int{}
	for _, r := range trail {
		if (r.Action == "policy.publish" || r.Action == "token.create") && r.Result == "done" {
			told[r.Action+" "+r.Object]++
		}
	}
	var errs []error
	for what, n := range there {
		if n != 1 || told[what] != 1 {
			errs = append(errs, fmt.Errorf("%s: there are %d of it, and %d records of the audit trail", what, n, told[what]))
		}
		delete(told, what)
	}
	for what := range told {
		errs = append(errs, fmt.Errorf("%s: the audit trail has it, and it is not there", what))
	}
	return errors.Join(errs...)
}

// showEverywhere checks that each node can show the policy in force, body and all.
func (c *Cluster) showEverywhere(ctx context.Context, newest Revision) error {
	for _, n := range c.Nodes {
		var out []byte
		var last error
		err := process.Await(ctx, n.ID+" shows the policy in force", func() bool {
			out, last = c.commandAt(ctx, []string{n.GRPC}, "policy", "show", "-o", "yaml", "--timeout", "5s")
			return last == nil
		})
		if err != nil {
			return errors.Join(err, last)
		}
		if !strings.Contains(string(out), newest.Version) || !strings.Contains(string(out), class) {
			return fmt.Errorf("%s shows another policy than %+v: %s", n.ID, newest, out)
		}
	}
	return nil
}
