package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// DefaultValid is how long the certificates of nodes and callers are valid, and DefaultValidCA that of a CA.
const (
	DefaultValid   = 90 * 24 * time.Hour
	DefaultValidCA = 3650 * 24 * time.Hour
)

// backdate is how far a certificate begins before it is made, so that a machine whose clock is behind takes it.
const backdate = 5 * time.Minute

// Made tells of a certificate that was made.
type Made struct {
	Cert, Key string // files
	URI       string
	NotAfter  time.Time
}

// caFiles are a CA's files in its directory.
func caFiles(dir string) (cert, key string) {
	return filepath.Join(dir, "ca.pem"), filepath.Join(dir, "ca-key.pem")
}

// MakeCA makes the CA of a cluster in dir: ca.pem and ca-key.pem.
func MakeCA(dir, cluster string, valid time.Duration) (Made, error) {
	if !clusterPattern.MatchString(cluster) {
		return Made{}, fmt.Errorf("cluster id %.63q is not a UUID in lower case", cluster)
	}
	if valid <= 0 {
		return Made{}, errors.New("the CA must be valid for a time above 0")
	}
	now := time.Now()
	template := &x509.Certificate{
		Subject:   pkix.Name{CommonName: "Quorate CA of " + cluster},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(valid),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign,
		URIs:     []*url.URL{{Scheme: scheme, Host: cluster}},
	}
	cert, key := caFiles(dir)
	return write(template, nil, cert, key)
}

// Authority is a cluster's CA with its key.
type Authority struct {
	Cluster string
	cert    tls.Certificate
}

// OpenAuthority reads what MakeCA has made in dir.
func OpenAuthority(dir string) (*Authority, error) {
	certFile, keyFile := caFiles(dir)
	cert, certErr := readPEM("CA", certFile)
	key, keyErr := readPEM("the CA's key", keyFile)
	if err := errors.Join(certErr, keyErr); err != nil {
		return nil, fmt.Errorf("%w: make a CA with `quorate cert ca`, or name its directory", err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("%s with %s: %w", certFile, keyFile, err)
	}
	for _, u := range pair.Leaf.URIs {
		if u.Scheme == scheme && u.Path == "" && pair.Leaf.IsCA {
			return &Authority{Cluster: u.Host, cert: pair}, nil
		}
	}
	return nil, fmt.Errorf("%s is not a CA that `quorate cert ca` has made: it names no cluster", certFile)
}

// Issue makes a certificate for id, whose cluster is the CA's, in dir: ROLE-NAME.pem and ROLE-NAME-key.pem. hosts
// are the names and IP addresses under which a node is reached; others have none.
func (a *Authority) Issue(dir string, id ID, hosts []string, valid time.Duration) (Made, error) {
	id.Cluster = a.Cluster
	if err := id.Validate(); err != nil {
		return Made{}, err
	}
	if (id.Role == Node) != (len(hosts) > 0) {
		return Made{}, errors.New("a node needs the hosts under which it is reached, and nobody else has any")
	}
	if valid <= 0 {
		return Made{}, errors.New("a certificate must be valid for a time above 0")
	}
	now := time.Now()
	template := &x509.Certificate{
		Subject:   pkix.Name{CommonName: id.String()},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(valid),
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		URIs:                  []*url.URL{id.URI()},
	}
	if id.Role == Node {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	for _, h := range hosts {
		if err := addHost(template, h); err != nil {
			return Made{}, err
		}
	}
	if end := a.cert.Leaf.NotAfter; template.NotAfter.After(end) {
		return Made{}, fmt.Errorf("the CA ends on %s, before the certificate would: make it valid for less, or make a new CA",
			end.Format(time.RFC3339))
	}
	base := filepath.Join(dir, id.Role.String()+"-"+id.Name)
	return write(template, &a.cert, base+".pem", base+"-key.pem")
}

func addHost(template *x509.Certificate, host string) error {
	if ip := net.ParseIP(host); ip != nil {
		if ip.IsUnspecified() {
			return fmt.Errorf("host %s is no address that others reach: name the node's own", host)
		}
		template.IPAddresses = append(template.IPAddresses, ip)
		return nil
	}
	if host == "" || strings.ContainsAny(host, ":/ *") {
		return fmt.Errorf("host %q is neither a name nor an IP address: write it without a port", host)
	}
	template.DNSNames = append(template.DNSNames, host)
	return nil
}

// write makes a key and a certificate for it by issuer, or by itself when that is nil, and the files for both.
func write(template *x509.Certificate, issuer *tls.Certificate, certFile, keyFile string) (Made, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Made{}, err
	}
	parent, signer := template, any(key)
	if issuer != nil {
		parent, signer = issuer.Leaf, issuer.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return Made{}, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Made{}, err
	}
	if err := os.MkdirAll(filepath.Dir(certFile), 0o750); err != nil {
		return Made{}, err
	}
	// The key first: a certificate without its key would be in the way, and of no use.
	if err := create(keyFile, "PRIVATE KEY", keyDER, 0o600); err != nil {
		return Made{}, err
	}
	if err := create(certFile, "CERTIFICATE", der, 0o644); err != nil {
		return Made{}, errors.Join(err, os.Remove(keyFile))
	}
	return Made{Cert: certFile, Key: keyFile, URI: template.URIs[0].String(), NotAfter: template.NotAfter}, nil
}

// create writes a new file, and never over one that is there.
func create(file, kind string, der []byte, mode fs.FileMode) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s is there already: remove it first, or write into another directory", file)
	}
	if err != nil {
		return err
	}
	err = pem.Encode(f, &pem.Block{Type: kind, Bytes: der})
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(file))
	}
	return nil
}
