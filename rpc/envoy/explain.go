package envoy

import (
	"fmt"
	"strings"

	"github.com/quorate/quorate/quotaerr"
)

// envoyDoes is what every error ends with: what becomes of the public caller's request.
const envoyDoes = "; for an error, Envoy refuses the request where its filter has failure_mode_deny: true, and " +
	"passes it on uncounted where not"

// explained is err as an operator of Envoy needs it: what is wrong, where to look, and what Envoy makes of it. Nothing
// in it is for a program to act upon; that is the reason, which stays. classes are those that were asked about.
func explained(err error, classes []string) error {
	e := *quotaerr.As(err)
	e.Message, e.Cause = troubleOf(&e, classes)+envoyDoes, err
	return &e
}

// troubleOf is what is wrong, and where to look.
func troubleOf(e *quotaerr.Error, classes []string) string {
	whose := "requests"
	if len(classes) > 0 {
		whose = "checks of " + namesOf(classes)
	}
	switch e.Reason {
	case quotaerr.NoQuorum, quotaerr.NotLeader:
		return fmt.Sprintf("no node that a majority follows could be asked in time for %s: look with \"quorate cluster "+
			"status\" for nodes that are away, and for a timeout of the class or of the filter below a failover's few "+
			"seconds", whose)
	case quotaerr.OutcomeUnknown:
		return fmt.Sprintf("no answer came in time for %s, which may have been counted: look at the timeout of the "+
			"class and of the filter, and with \"quorate cluster status\" for nodes that are away", whose)
	case quotaerr.PolicyLeaseExpired:
		return fmt.Sprintf("no node can prove that it has the policy in force for %s: look with \"quorate cluster status\" "+
			"for nodes that are away", whose)
	case quotaerr.PolicyStale, quotaerr.PolicyBehind:
		return fmt.Sprintf("a node does not have the policy in force for %s yet: look at \"quorate policy status\" if it "+
			"lasts, or apply a policy if there is none", whose)
	case quotaerr.WrongEpoch, quotaerr.Frozen:
		return fmt.Sprintf("what decides %s is being moved to another node: look at \"quorate partition list\" if it lasts "+
			"longer than seconds", whose)
	case quotaerr.Overloaded:
		return fmt.Sprintf("a node has too many unanswered questions to take %s: look at "+
			"quorate_checks_in_flight in its metrics, and spread the filter's cluster over all nodes", whose)
	case quotaerr.Capacity:
		return fmt.Sprintf("a node has no room to remember %s: %s", whose, messageOf(e))
	case quotaerr.DecisionIDConflict:
		return fmt.Sprintf("a request id was used already for %s, with another question: is it one that Envoy has made, "+
			"and has the policy changed just now?", whose)
	default: // what is wrong with the request, which is written here; and Internal, of which nothing is told
		return messageOf(e)
	}
}

func messageOf(e *quotaerr.Error) string {
	if e.Message == "" {
		return string(e.Reason)
	}
	return e.Message
}

// namesOf are the first of some names of classes, each once.
func namesOf(classes []string) string {
	const most = 3
	var out []string
	seen := map[string]bool{}
	for _, c := range classes {
		if seen[c] {
			continue
		}
		seen[c] = true
		if len(out) == most {
			out = append(out, "…")
			break
		}
		out = append(out, fmt.Sprintf("%.64q", c))
	}
	return strings.Join(out, ", ")
}
