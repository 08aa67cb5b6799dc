package identity

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// Role is what a certificate's owner may do. Roles are bits, so that a set of them is a Role too.
type Role uint8

// The roles.
const (
	Node    Role = 1 << iota // a node of the cluster: talks to other nodes
	Gateway                  // asks for decisions
	Admin                    // operates the cluster
	Viewer                   // looks on
)

// AnyRole is the set of all roles.
const AnyRole = Node | Gateway | Admin | Viewer

var roleNames = []struct {
	role Role
	name string
}{{Node, "node"}, {Gateway, "gateway"}, {Admin, "admin"}, {Viewer, "viewer"}}

// String returns the name of the role, or the names of a set's.
func (r Role) String() string {
	var names []string
	for _, n := range roleNames {
		if r&n.role != 0 {
			names = append(names, n.name)
		}
	}
	if len(names) == 0 {
		return "nobody"
	}
	return strings.Join(names, " or ")
}

// RoleNamed returns the role that has the given name.
func RoleNamed(name string) (role Role, known bool) {
	for _, n := range roleNames {
		if n.name == name {
			return n.role, true
		}
	}
	return 0, false
}

// Is reports whether r has one of the given roles.
func (r Role) Is(of Role) bool { return r&of != 0 }

// The bounds of what a certificate may say.
const (
	maxClasses    = 256
	maxClassBytes = 128
)

// reservedName is the identity of callers without transport security: no certificate may take it.
const reservedName = "insecure"

// ID is who a certificate says its owner is.
type ID struct {
	Cluster string
	Role    Role
	// Name is a node's id, or the name of a gateway, admin or viewer.
	Name string
	// Classes are the API classes that a gateway may ask for; none: all.
	Classes []string
}

const scheme = "quorate"

var (
	namePattern    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)
	clusterPattern = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
)

// Validate reports what is wrong with id.
func (id ID) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !clusterPattern.MatchString(id.Cluster) {
		bad("cluster id %.63q is not a UUID in lower case", id.Cluster)
	}
	if !slices.ContainsFunc(roleNames, func(n struct {
		role Role
		name string
	}) bool {
		return n.role == id.Role
	}) {
		bad("no role")
	}
	if !namePattern.MatchString(id.Name) {
		bad("name %.63q: use letters, digits, '.', '_' and '-', at most 63", id.Name)
	}
	if id.Name == reservedName {
		bad("name %q is that of callers without TLS: take another", reservedName)
	}
	if len(id.Classes) > 0 && id.Role != Gateway {
		bad("only a gateway has classes")
	}
	if len(id.Classes) > maxClasses {
		bad("%d classes, at most %d are possible: leave them out to allow all", len(id.Classes), maxClasses)
	}
	for _, c := range id.Classes {
		if c == "" || len(c) > maxClassBytes || !utf8.ValidString(c) || strings.ContainsRune(c, 0) {
			bad("class %.63q: it needs 1 to %d bytes of UTF-8", c, maxClassBytes)
		}
	}
	return errors.Join(errs...)
}

// MayAsk reports whether a check of apiClass may be asked for.
func (id ID) MayAsk(apiClass string) bool {
	return len(id.Classes) == 0 || slices.Contains(id.Classes, apiClass)
}

// String is the role and name, as logs and errors show it.
func (id ID) String() string { return id.Role.String() + "/" + id.Name }

// URI is how a certificate carries id.
func (id ID) URI() *url.URL {
	u := &url.URL{Scheme: scheme, Host: id.Cluster, Path: "/" + id.Role.String() + "/" + id.Name}
	var classes []string
	for _, c := range id.Classes {
		classes = append(classes, url.QueryEscape(c))
	}
	if len(classes) > 0 {
		u.RawQuery = "classes=" + strings.Join(classes, ",")
	}
	return u
}

// parse reads what URI writes, and nothing else.
func parse(u *url.URL) (ID, error) {
	id := ID{Cluster: u.Host}
	role, name, ok := strings.Cut(strings.TrimPrefix(u.Path, "/"), "/")
	if !ok {
		return ID{}, fmt.Errorf("%.200q names no role and name", u)
	}
	id.Name = name
	if id.Role, ok = RoleNamed(role); !ok {
		return ID{}, fmt.Errorf("%.200q: %.63q is no role", u, role)
	}
	if u.RawQuery != "" {
		list, ok := strings.CutPrefix(u.RawQuery, "classes=")
		if !ok {
			return ID{}, fmt.Errorf("%.200q has more than classes behind its name", u)
		}
		for _, escaped := range strings.Split(list, ",") {
			class, err := url.QueryUnescape(escaped)
			if err != nil {
				return ID{}, fmt.Errorf("%.200q: %w", u, err)
			}
			id.Classes = append(id.Classes, class)
		}
	}
	if err := id.Validate(); err != nil {
		return ID{}, fmt.Errorf("%.200q: %w", u, err)
	}
	if id.URI().String() != u.String() {
		return ID{}, fmt.Errorf("%.200q is not as this program writes it", u)
	}
	return id, nil
}

// Of reads who a certificate says its owner is. It does not verify the certificate.
func Of(cert *x509.Certificate) (ID, error) {
	var found *url.URL
	for _, u := range cert.URIs {
		if u.Scheme != scheme {
			continue
		}
		if found != nil {
			return ID{}, errors.New("the certificate names more than one identity")
		}
		found = u
	}
	if found == nil {
		return ID{}, fmt.Errorf("the certificate names no role: it has no %s:// URI; make it with `quorate cert`", scheme)
	}
	id, err := parse(found)
	if err != nil {
		return ID{}, fmt.Errorf("the certificate's identity: %w", err)
	}
	return id, nil
}

// mustBe refuses an id that is not one of those wanted. Empty fields of want are not compared.
func (id ID) mustBe(want ID) error {
	switch {
	case want.Cluster != "" && id.Cluster != want.Cluster:
		return fmt.Errorf("the certificate of %s is of cluster %s, not of %s", id, id.Cluster, want.Cluster)
	case want.Role != 0 && !id.Role.Is(want.Role):
		return fmt.Errorf("the certificate is of role %s (%s), where %s is needed", id.Role, id.Name, want.Role)
	case want.Name != "" && id.Name != want.Name:
		return fmt.Errorf("the certificate is that of %s, not of %s/%s", id, want.Role, want.Name)
	}
	return nil
}
