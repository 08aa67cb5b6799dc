package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/internal/identity"
)

// The environment's names of the TLS flags; the flags go before them.
const (
	tlsCAEnv   = "QUORATE_TLS_CA"
	tlsCertEnv = "QUORATE_TLS_CERT"
	tlsKeyEnv  = "QUORATE_TLS_KEY"
)

// tokenEnv holds a token, as --token-file's file does; the flag goes before it.
const tokenEnv = "QUORATE_TOKEN" //nolint:gosec // G101: the name of a variable

// maxTokenBytes bounds the file of a token.
const maxTokenBytes = 4 << 10

// credentials are what a command shows to the cluster.
type credentials struct {
	tls   *identity.Source // nil: plaintext
	token string           // empty: none
}

// credentials finds what flags and environment name: nothing, which is plaintext; a certificate with its key and
// the CA; or a token, with the CA.
func (o *options) credentials(cmd *cobra.Command) (credentials, error) {
	files, token, err := o.named(cmd)
	if err != nil {
		return credentials{}, err
	}
	named := files != identity.Files{}
	switch whole := files.CA != "" && files.Cert != "" && files.Key != ""; {
	case files.Cert == "" && files.Key == "" && token == "" && named:
		return credentials{}, usagef(cmd, "--tls-ca alone goes with a token: give --token-file, or --tls-cert and --tls-key")
	case !whole && (files.Cert != "" || files.Key != ""):
		return credentials{}, usagef(cmd, "--tls-ca, --tls-cert and --tls-key go together: give all three")
	case !named:
		return credentials{token: token}, nil
	case !whole:
		trusted, err := identity.OpenCA(files.CA)
		return credentials{trusted, token}, err
	default:
		own, err := identity.Open(files, identity.ID{})
		return credentials{own, token}, err
	}
}

// named are the files and the token that flags and environment name. A certificate or a token that a flag names
// goes before the other of the environment.
func (o *options) named(cmd *cobra.Command) (files identity.Files, token string, err error) {
	files = o.tls
	certFlag := files.Cert != "" || files.Key != ""
	fill := func(value *string, env string) {
		if *value == "" {
			*value = os.Getenv(env)
		}
	}
	fill(&files.CA, tlsCAEnv)
	if certFlag || o.tokenFile == "" {
		fill(&files.Cert, tlsCertEnv)
		fill(&files.Key, tlsKeyEnv)
	}
	switch {
	case o.tokenFile != "":
		token, err = readToken(o.tokenFile)
	case !certFlag:
		if token = os.Getenv(tokenEnv); token != "" {
			err = checkToken("$"+tokenEnv, token)
		}
	}
	if err == nil && token != "" && (files.Cert != "" || files.Key != "") {
		err = usagef(cmd, "a certificate (--tls-cert, --tls-key) and a token (--token-file, $%s) say both who you are: "+
			"give one of them", tokenEnv)
	}
	return files, token, err
}

func readToken(file string) (token string, err error) {
	f, err := os.Open(file)
	if err != nil {
		return "", fmt.Errorf("--token-file: %w", err)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxTokenBytes+1))
	if err := errors.Join(err, f.Close()); err != nil {
		return "", fmt.Errorf("--token-file: %w", err)
	}
	token = strings.TrimSpace(string(b))
	return token, checkToken("--token-file: "+file, token)
}

// checkToken refuses what no token is, without showing it.
func checkToken(where, token string) error {
	odd := func(r rune) bool { return r <= ' ' || r > '~' }
	if token == "" || len(token) > maxTokenBytes || strings.IndexFunc(token, odd) >= 0 {
		return fmt.Errorf("%s holds no token: put there what `quorate token create` has printed, alone", where)
	}
	return nil
}
