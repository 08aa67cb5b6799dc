package identity

import (
	"crypto/x509"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// Shows that every identity is read back from the URI that it is written as, classes with commas, quotes and
// letters of any script included.
func TestURIRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := ID{
			Cluster: clusterA,
			Role:    rapid.SampledFrom([]Role{Node, Gateway, Admin, Viewer}).Draw(t, "role"),
			Name:    rapid.StringMatching(`[A-Za-z0-9][A-Za-z0-9._-]{0,62}`).Draw(t, "name"),
		}
		if id.Role == Gateway {
			id.Classes = rapid.SliceOfN(rapid.StringN(1, 20, maxClassBytes), 0, 4).Draw(t, "classes")
		}
		if len(id.Classes) == 0 {
			id.Classes = nil
		}
		if id.Validate() != nil {
			t.Skip("not an identity")
		}
		u, err := url.Parse(id.URI().String())
		if err != nil {
			t.Fatal(err)
		}
		got, err := parse(u)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(id, got); diff != "" {
			t.Fatal(diff)
		}
	})
}

// Shows that what is not exactly an identity is refused with its reason: no URI, two, another role, a set of
// roles, foreign or missing parts, and names that would mean something else.
func TestNoIdentity(t *testing.T) {
	for uri, want := range map[string]string{
		"":                                   "names no role",
		"spiffe://x/y":                       "names no role",
		"quorate://" + clusterA:              "no role and name",
		"quorate://" + clusterA + "/node":    "no role and name",
		"quorate://" + clusterA + "/node/":   "use letters",
		"quorate://" + clusterA + "/king/n0": "is no role",
		"quorate://" + clusterA + "/node or admin/n0":           "is no role",
		"quorate://" + clusterA + "/node/n0/x":                  "use letters",
		"quorate://" + clusterA + "/gateway/insecure":           "take another",
		"quorate://" + clusterA + "/node/n0?classes=a":          "only a gateway",
		"quorate://" + clusterA + "/gateway/g?class=a":          "more than classes",
		"quorate://" + clusterA + "/gateway/g?classes=":         "1 to 128 bytes",
		"quorate://" + clusterA + "/gateway/g?classes=a,":       "1 to 128 bytes",
		"quorate://" + clusterA + "/gateway/g?classes=%0":       "invalid URL escape",
		"quorate://" + clusterA + "/gateway/g?classes=a&x=1":    "not as this program writes it",
		"quorate://" + clusterA + "/gateway/g#x":                "not as this program writes it",
		"quorate://u@" + clusterA + "/gateway/g":                "not as this program writes it",
		"quorate://" + clusterA + ":1/gateway/g":                "not a UUID",
		"quorate://" + strings.ToUpper(clusterA) + "/gateway/g": "not a UUID",
		"quorate:///gateway/g":                                  "not a UUID",
	} {
		cert := &x509.Certificate{}
		if uri != "" {
			u, err := url.Parse(uri)
			if err != nil {
				t.Fatal(err)
			}
			cert.URIs = append(cert.URIs, u)
		}
		if id, err := Of(cert); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %+v, %v, want %q", uri, id, err, want)
		}
	}
	one := ID{Cluster: clusterA, Role: Viewer, Name: "v"}.URI()
	if _, err := Of(&x509.Certificate{URIs: []*url.URL{one, one}}); err == nil {
		t.Error("two identities are taken")
	}
	if id, err := Of(&x509.Certificate{URIs: []*url.URL{{Scheme: "spiffe", Host: "x"}, one}}); err != nil || id.Name != "v" {
		t.Errorf("beside a foreign URI: %v %v", id, err)
	}
}

// Shows that a gateway with classes may ask for these by their very names only, and one without for all.
func TestMayAsk(t *testing.T) {
	some := ID{Classes: []string{"a", "b"}}
	for class, want := range map[string]bool{"a": true, "b": true, "A": false, "a ": false, "": false, "default": false} {
		if some.MayAsk(class) != want {
			t.Errorf("%q: %v", class, !want)
		}
	}
	if !(ID{}).MayAsk("anything") {
		t.Error("without a list something is refused")
	}
}
