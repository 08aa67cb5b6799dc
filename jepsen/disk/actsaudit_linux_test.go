package disk

import (
	"strings"
	"testing"
)

// Shows that the audit of an operator's acts notices a lost, a renumbered and a doubled one, and an audit trail that
// tells more or less than what is there.
func TestActsAuditNotices(t *testing.T) {
	published := act{name: "act0", revision: 2, acknowledged: true}
	revisions := []Revision{{2, "act0"}, {1, firstVersion}}
	tokens := []Token{{"id1", "act1"}}
	if !published.there(revisions, nil) || published.there(revisions[1:], tokens) {
		t.Error("a lost policy is not noticed")
	}
	if published.there([]Revision{{3, "act0"}}, nil) {
		t.Error("a policy with another number is not noticed")
	}
	if unknown := (act{name: "act0"}); !unknown.there([]Revision{{3, "act0"}}, nil) {
		t.Error("one that was done, though not acknowledged, is not counted")
	}
	if made := (act{name: "act1", token: "id1", acknowledged: true}); !made.there(nil, tokens) || made.there(nil, nil) {
		t.Error("a lost token is not noticed")
	}
	record := func(action, object string) AuditRecord {
		return AuditRecord{Action: action, Object: object, Result: "done"}
	}
	trail := []AuditRecord{
		record("token.create", "token id1"), record("policy.publish", "policy act0"), record("node.put", "node n0"),
		record("policy.publish", "policy "+firstVersion), {Action: "policy.publish", Object: "policy x", Result: "refused"},
	}
	if err := agree(revisions, tokens, trail); err != nil {
		t.Errorf("what agrees: %v", err)
	}
	for says, err := range map[string]error{
		"act0: there are 1 of it, and 0 records": agree(revisions, tokens, append([]AuditRecord{trail[0]}, trail[2:]...)),
		"act0: there are 1 of it, and 2 records": agree(revisions, tokens, append(trail, trail[1])),
		"act0: there are 2 of it":                agree(append(revisions, revisions[0]), tokens, trail),
		"id1: the audit trail has it":            agree(revisions, nil, trail),
	} {
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("expected %q: %v", says, err)
		}
	}
}
