// Package quotaerr names, once, every reason for which a check is decided, refused or left without
// an answer, and the typed error that carries such a reason through the program.
//
// It is a leaf: it imports nothing but the standard library, so that the owner of a partition can
// say not_leader or outcome_unknown without knowing any wire protocol, and the edge can turn that
// into a status without knowing the owner.
//
// Guarantees: the text of a reason is public and never changes; All lists each of them; an Error
// with no reason counts as Internal, never as an allow.
//
// The caller's duties: return outcome_unknown for everything that was handed to the log and whose
// fate is not known, and any other reason only when the check has definitely consumed nothing. Put
// only what the asking gateway may read into Message; wrap the cause, which stays inside.
//
// It does not say which status a reason has on the wire; the rpc package's table does.
package quotaerr
