package identity

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync/atomic"
	"time"
)

const (
	// ReloadInterval is how often Watch looks whether the files have changed.
	ReloadInterval = 2 * time.Second
	// maxFileBytes bounds each file.
	maxFileBytes = 1 << 20
)

// Files are where a certificate, its key and the CAs that others' certificates must come from are kept, in PEM.
type Files struct {
	// CA may hold several certificates, so that an old CA counts while a new one is introduced.
	CA string
	// Cert is the own certificate, followed by those between it and the CA, if any.
	Cert string
	Key  string
}

// Source is an own certificate, if there is one, and the CAs to judge others by, as they are at present.
type Source struct {
	files   Files
	caOnly  bool // there is no own certificate
	want    ID
	now     func() time.Time
	current atomic.Pointer[bundle]
	refused string // what Watch said last; used by its goroutine only
}

// bundle is what a Source read at one moment.
type bundle struct {
	hash  [sha256.Size]byte
	cert  tls.Certificate
	roots *x509.CertPool
	id    ID
}

// Open reads files and checks that they hold together: that the key fits the certificate, that a CA of the file
// has issued it, that it is valid now, and that it is one of want, whose empty fields are not compared. All that
// is wrong is reported at once. Later files must be of the same identity; a gateway's classes may change.
func Open(files Files, want ID) (*Source, error) {
	s := &Source{files: files, want: want, now: time.Now}
	b, err := s.read()
	if err != nil {
		return nil, err
	}
	s.current.Store(b)
	s.want = ID{Cluster: b.id.Cluster, Role: b.id.Role, Name: b.id.Name} // whoever it is, it stays that
	return s, nil
}

// OpenCA reads the CAs of a file alone, for a client without a certificate: it shows none, and accepts nodes of
// any cluster with a certificate from one of them. Such a Source's ID is empty, and it is of no use to a server.
func OpenCA(file string) (*Source, error) {
	s := &Source{files: Files{CA: file}, caOnly: true, now: time.Now}
	b, err := s.read()
	if err != nil {
		return nil, err
	}
	s.current.Store(b)
	return s, nil
}

// Anonymous reports whether s has no certificate, as after OpenCA.
func (s *Source) Anonymous() bool { return s.caOnly }

// ID is whom the own certificate names.
func (s *Source) ID() ID { return s.current.Load().id }

// NotAfter is when the own certificate ends; the zero time without one.
func (s *Source) NotAfter() time.Time {
	if leaf := s.current.Load().cert.Leaf; leaf != nil {
		return leaf.NotAfter
	}
	return time.Time{}
}

// Watch reads the files again and again until ctx ends, and puts in force what is good.
func (s *Source) Watch(ctx context.Context, logger *slog.Logger) {
	tick := time.NewTicker(ReloadInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.reload(logger)
		}
	}
}

// reload puts changed files in force, if they are good. What is bad is said once, and looked at again: a
// certificate may become valid, and a key may be written a moment after its certificate.
func (s *Source) reload(logger *slog.Logger) {
	old := s.current.Load()
	b, err := s.read()
	switch {
	case err != nil:
		if err.Error() != s.refused {
			s.refused = err.Error()
			logger.Error("the TLS files are not usable: those read before stay in force", "error", err,
				"certificate_ends", s.NotAfter())
		}
	case b.hash != old.hash:
		s.refused = ""
		s.current.Store(b)
		logger.Info("the TLS files have changed: new connections use them", "identity", b.id.String(),
			"certificate_ends", s.NotAfter())
	default:
		s.refused = ""
	}
}

func (s *Source) read() (*bundle, error) {
	if s.caOnly {
		return s.readCA()
	}
	ca, caErr := readPEM("CA", s.files.CA)
	cert, certErr := readPEM("certificate", s.files.Cert)
	key, keyErr := readPEM("key", s.files.Key)
	if err := errors.Join(caErr, certErr, keyErr); err != nil {
		return nil, err
	}
	b := &bundle{}
	sum := sha256.New()
	for _, part := range [][]byte{ca, cert, key} {
		hash := sha256.Sum256(part)
		sum.Write(hash[:])
	}
	b.hash = [sha256.Size]byte(sum.Sum(nil))
	var err error
	if b.roots, err = rootsOf(s.files.CA, ca); err != nil {
		return nil, err
	}
	if b.cert, err = tls.X509KeyPair(cert, key); err != nil {
		return nil, fmt.Errorf("certificate %s with key %s: %w: the key must be that of the first certificate in the file",
			s.files.Cert, s.files.Key, err)
	}
	if b.id, err = Of(b.cert.Leaf); err != nil {
		return nil, fmt.Errorf("certificate %s: %w", s.files.Cert, err)
	}
	if err := errors.Join(b.id.mustBe(s.want), s.judge(b)); err != nil {
		return nil, fmt.Errorf("certificate %s: %w", s.files.Cert, err)
	}
	return b, nil
}

// readCA reads the CAs alone.
func (s *Source) readCA() (*bundle, error) {
	ca, err := readPEM("CA", s.files.CA)
	if err != nil {
		return nil, err
	}
	b := &bundle{hash: sha256.Sum256(ca)}
	if b.roots, err = rootsOf(s.files.CA, ca); err != nil {
		return nil, err
	}
	return b, nil
}

// judge checks the own certificate as the other ends will.
func (s *Source) judge(b *bundle) error {
	leaf, now := b.cert.Leaf, s.now()
	const form = time.RFC3339
	switch {
	case now.After(leaf.NotAfter):
		return fmt.Errorf("it has ended, on %s: make a new one with `quorate cert %s %s`",
			leaf.NotAfter.Format(form), b.id.Role, b.id.Name)
	case now.Before(leaf.NotBefore):
		return fmt.Errorf("it begins on %s: check this machine's clock, or wait", leaf.NotBefore.Format(form))
	}
	between := x509.NewCertPool()
	for _, der := range b.cert.Certificate[1:] {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return err
		}
		between.AddCert(c)
	}
	uses := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if b.id.Role == Node {
		uses = append(uses, x509.ExtKeyUsageServerAuth)
	}
	for _, use := range uses { // each is needed; Verify is content with one of several
		_, err := leaf.Verify(x509.VerifyOptions{
			Roots: b.roots, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{use},
		})
		if err != nil {
			return fmt.Errorf("%w: it must come from a CA in %s, which must be valid", err, s.files.CA)
		}
	}
	return nil
}

func rootsOf(file string, src []byte) (*x509.CertPool, error) {
	pool, found := x509.NewCertPool(), false
	for rest := src; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("CA %s: it holds a %s: only certificates belong there", file, block.Type)
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("CA %s: %w", file, err)
		}
		if !c.IsCA {
			return nil, fmt.Errorf("CA %s: the certificate of %q is not that of a CA", file, c.Subject.CommonName)
		}
		pool.AddCert(c)
		found = true
	}
	if !found {
		return nil, fmt.Errorf("CA %s: it holds no certificate", file)
	}
	return pool, nil
}

func readPEM(what, file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	defer f.Close() //nolint:errcheck // only read from
	src, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	if len(src) > maxFileBytes {
		return nil, fmt.Errorf("%s %s: it has more than %d bytes", what, file, maxFileBytes)
	}
	return src, nil
}
