package caller

import (
	"crypto/x509"
	"fmt"
	"time"
)

// The prefixes of the principals that certificates name.
const (
	PrefixURI        = "uri:"
	PrefixDNS        = "dns:"
	PrefixCommonName = "cn:"
)

// CertificateName reads a principal, with its prefix, off a verified certificate.
type CertificateName func(*x509.Certificate) (string, error)

// URIName is the certificate's URI, as SPIFFE has them; it must have exactly one.
func URIName(c *x509.Certificate) (string, error) {
	if len(c.URIs) != 1 {
		return "", &Error{Kind: ErrInvalid, Detail: fmt.Sprintf("the certificate has %d URIs, not one", len(c.URIs))}
	}
	return PrefixURI + c.URIs[0].String(), nil
}

// DNSName is the certificate's DNS name; it must have exactly one.
func DNSName(c *x509.Certificate) (string, error) {
	if len(c.DNSNames) != 1 {
		return "", &Error{
			Kind: ErrInvalid, Detail: fmt.Sprintf("the certificate has %d DNS names, not one", len(c.DNSNames)),
		}
	}
	return PrefixDNS + c.DNSNames[0], nil
}

// CommonName is the subject's common name.
func CommonName(c *x509.Certificate) (string, error) {
	if c.Subject.CommonName == "" {
		return "", &Error{Kind: ErrInvalid, Detail: "the certificate's subject has no common name"}
	}
	return PrefixCommonName + c.Subject.CommonName, nil
}

// Certificate is the name of the certificate that the client showed and the handshake verified. One that was shown
// but not verified counts as none, and one that has ended since the handshake is not accepted.
func Certificate(name CertificateName) Key {
	if name == nil {
		return broken("Certificate needs to know which name counts, for instance caller.URIName")
	}
	return Key{find: func(r *Request) (string, error) {
		if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 || len(r.TLS.VerifiedChains[0]) == 0 {
			return "", &Error{Kind: ErrMissing, Detail: "connect with a client certificate"}
		}
		leaf := r.TLS.VerifiedChains[0][0]
		if time.Now().After(leaf.NotAfter) {
			return "", &Error{Kind: ErrInvalid, Detail: "the client certificate has ended: connect with a fresh one"}
		}
		return name(leaf)
	}}
}
