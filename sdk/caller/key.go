package caller

import (
	"errors"
	"fmt"

	"github.com/quorate/quorate/policy"
	"github.com/quorate/quorate/sdk/internal/bound"
)

// MaxPrincipalBytes is the longest principal that the cluster takes.
const MaxPrincipalBytes = policy.MaxPrincipalBytes

// The conditions for which a key names nobody, for errors.Is. Any other error of a lookup counts as ErrUnavailable:
// who calls could not be told, so nothing is let through.
var (
	// ErrMissing: the request shows no credential of this kind. HTTP 401, gRPC UNAUTHENTICATED.
	ErrMissing = errors.New("no credential")
	// ErrInvalid: it shows one that is not accepted. HTTP 401, gRPC UNAUTHENTICATED.
	ErrInvalid = errors.New("the credential is not accepted")
	// ErrMalformed: what it shows cannot be read, or names no possible principal. HTTP 400, gRPC INVALID_ARGUMENT.
	ErrMalformed = errors.New("the request cannot be read")
	// ErrUnavailable: what is needed to judge it cannot be reached at present. HTTP 503, gRPC UNAVAILABLE.
	ErrUnavailable = errors.New("the credential cannot be judged at present")
)

// Error is why a key names nobody.
type Error struct {
	// Kind is one of the four conditions.
	Kind error
	// Detail may be shown to the public caller: it says what to send, and never repeats what was sent.
	Detail string
	// Challenge is the authentication scheme that is expected, for WWW-Authenticate; empty for none.
	Challenge string
	// Cause is for the operator; nil when Detail says all.
	Cause error
}

// Error is the condition, the detail and the cause, each once.
func (e *Error) Error() string {
	switch s := e.Kind.Error() + ": " + e.Detail; {
	case e.Cause == nil, e.Cause.Error() == e.Kind.Error():
		return s
	case errors.Is(e.Cause, e.Kind):
		return e.Cause.Error() // which names the condition in its place
	default:
		return s + ": " + e.Cause.Error()
	}
}

// Unwrap gives the condition and the cause.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Cause}
}

// Key finds the principal that a request is charged to. It is made by the functions of this package, or by KeyFunc.
// The zero Key names nobody.
type Key struct {
	find    func(*Request) (string, error)
	problem error
}

// KeyFunc is a key of one's own. What find returns is checked as every principal is. Its errors should wrap one of the
// conditions of this package; to say to the public what to send, return &Error{Kind: …, Detail: …}. Any other error
// counts as ErrUnavailable.
//
// It may read the body, if it puts back what the handler is to read: read at most some bound of r.HTTP.Body, refuse
// what is longer, and set r.HTTP.Body to a new reader of the bytes, as the package's example for a login does. The form
// must then be parsed from the bytes: r.HTTP.ParseForm would take the body away.
//
// It must not return what a caller may freely choose as the only principal that a request is charged to: he would
// choose another one each time. As a further charge such a name is right where it is what is attacked, as the account
// at a login is: charge the address first, which nobody chooses, and then the account, so that who guesses passwords of
// one account from many addresses is stopped as well. Give it a prefix and one spelling (letter case, blanks), and bear
// in mind that a stranger can use up the account's allowance and so keep its owner out: give the limit room and a short
// window.
func KeyFunc(find func(*Request) (principal string, err error)) Key {
	if find == nil {
		return broken("KeyFunc needs a function")
	}
	return Key{find: find}
}

// broken is a key that cannot be used, and why.
func broken(format string, args ...any) Key {
	return Key{problem: fmt.Errorf("caller: "+format, args...)}
}

// Err is what is wrong with how the key was made; nil when it can be used. The middleware's New reports it.
func (k Key) Err() error {
	if k.problem == nil && k.find == nil {
		return errors.New("caller: no key: say who is charged, for instance with caller.APIKey")
	}
	return k.problem
}

// Principal is who r is charged to, valid for the cluster, or an *Error. An error of a lookup that is none of the
// conditions is wrapped as ErrUnavailable.
func (k Key) Principal(r *Request) (string, error) {
	if err := k.Err(); err != nil {
		return "", &Error{Kind: ErrUnavailable, Detail: "this service is not set up to tell its callers apart", Cause: err}
	}
	principal, err := k.find(r)
	if err != nil {
		return "", asError(err)
	}
	if err := Validate(principal); err != nil {
		return "", err
	}
	return principal, nil
}

// whatToSend is what the public is told where the key's own error is only for the operator.
var whatToSend = map[error]string{
	ErrMissing:   "send a credential that this service knows",
	ErrInvalid:   "send a credential that this service knows",
	ErrMalformed: "send the request in the form that this service asks for",
}

func asError(err error) *Error {
	var e *Error
	if errors.As(err, &e) && e != nil && e.Kind != nil {
		return e
	}
	for _, kind := range []error{ErrMissing, ErrInvalid, ErrMalformed} {
		if errors.Is(err, kind) {
			return &Error{Kind: kind, Detail: whatToSend[kind], Cause: err}
		}
	}
	return &Error{Kind: ErrUnavailable, Detail: "try again later", Cause: err}
}

// Validate reports, as ErrMalformed, a principal that the cluster would not take: empty, longer than
// MaxPrincipalBytes, not UTF-8, or with a NUL in it.
func Validate(principal string) error {
	var detail string
	switch {
	case principal == "":
		detail = "the request names nobody"
	case len(principal) > MaxPrincipalBytes:
		detail = fmt.Sprintf("the request names a caller in more than %d bytes", MaxPrincipalBytes)
	case !bound.Proper(principal, 1, MaxPrincipalBytes):
		detail = "the request names a caller in bytes that no name has"
	default:
		return nil
	}
	return &Error{Kind: ErrMalformed, Detail: detail}
}

// FirstOf is the first of the keys whose credential the request shows. One that is shown and not accepted is an error
// and does not fall through to the next. Put the one that every request has, as ClientIP, last.
func FirstOf(keys ...Key) Key {
	if len(keys) == 0 {
		return broken("FirstOf needs at least one key")
	}
	var problems []error
	for _, k := range keys {
		problems = append(problems, k.Err())
	}
	if err := errors.Join(problems...); err != nil {
		return Key{problem: err}
	}
	return Key{find: func(r *Request) (string, error) {
		var first error
		for _, k := range keys {
			principal, err := k.Principal(r)
			if err == nil || !errors.Is(err, ErrMissing) {
				return principal, err
			}
			if first == nil {
				first = err
			}
		}
		return "", first
	}}
}
