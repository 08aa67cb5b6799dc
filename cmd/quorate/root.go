package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/internal/identity"
)

// defaultAddrs are the three nodes of a local cluster as dev starts it.
const defaultAddrs = "127.0.0.1:7070,127.0.0.1:7080,127.0.0.1:7090"

// addrEnv replaces defaultAddrs; the flag goes before both.
const addrEnv = "QUORATE_ADDR"

// options are the flags that all commands share.
type options struct {
	addr      string
	tls       identity.Files
	tokenFile string
	timeout   time.Duration
	output    outputFormat
}

// addrs are the gRPC addresses of the cluster to talk to.
func (o *options) addrs(cmd *cobra.Command) ([]string, error) {
	list, from := o.addr, "--addr"
	if list == "" {
		list, from = os.Getenv(addrEnv), addrEnv
	}
	if list == "" {
		list = defaultAddrs
	}
	addrs := strings.Split(list, ",")
	for i, a := range addrs {
		addrs[i] = strings.TrimSpace(a)
		host, port, err := net.SplitHostPort(addrs[i])
		if err != nil || host == "" || port == "" {
			return nil, usagef(cmd, "%s: %q is not host:port", from, a)
		}
	}
	return addrs, nil
}

// run is the whole program: it carries out args and returns the exit status.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	return report(stderr, root.ExecuteContext(ctx))
}

func newRoot() *cobra.Command {
	o := &options{output: outputTable}
	root := newGroup("quorate", "Strict quotas for a fleet of API gateways",
		newCheck(o),
		newPeek(o),
		newCluster(o),
		newNode(o),
		newPartition(o),
		newDev(o),
		newServer(),
		newGateway(o),
		newBench(o), newCapacity(o),
		newVersion(o),
		newCompletion(),
		newCert(o),
		newToken(o),
		newPolicy(o),
		newClass(o),
		newUsage(o),
		newAudit(o),
		newSnapshot(o),
		newSimulate(o),
	)
	root.Long = `quorate decides, for a fleet of API gateways, whether a request may consume its caller's
allowance. An allow is returned only after a majority of replicas holds it.

Exit status: 0 done or allowed, 1 error, 2 usage, 3 denied, 4 unavailable.`
	root.SilenceErrors = true // run prints them, in one line
	root.SilenceUsage = true
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usagef(cmd, "%v", err) })
	flags := root.PersistentFlags()
	flags.StringVar(&o.addr, "addr", "",
		"gRPC addresses of the cluster, host:port[,…] (default $"+addrEnv+", else "+defaultAddrs+")")
	flags.StringVar(&o.tls.CA, "tls-ca", "", "file with the cluster's CA; none: no TLS (default $"+tlsCAEnv+")")
	flags.StringVar(&o.tls.Cert, "tls-cert", "", "file with the certificate to show (default $"+tlsCertEnv+")")
	flags.StringVar(&o.tls.Key, "tls-key", "", "file with the certificate's key (default $"+tlsKeyEnv+")")
	flags.StringVar(&o.tokenFile, "token-file", "",
		"file with a token, instead of a certificate; over TLS with --tls-ca (default the token in $"+tokenEnv+")")
	flags.DurationVar(&o.timeout, "timeout", defaultTimeout, "how long to try to get an answer from the cluster")
	flags.VarP(&o.output, "output", "o", "print as table, json or yaml")
	// The only error is that the flag does not exist.
	cobra.CheckErr(root.RegisterFlagCompletionFunc("output",
		cobra.FixedCompletions([]string{outputTable, outputJSON, outputYAML}, cobra.ShellCompDirectiveNoFileComp)))
	return root
}

// newGroup makes a command that only holds others. Alone it prints its help.
func newGroup(use, short string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use:   use,
		Short: short,
		// Without a Run of its own cobra would print help for an unknown subcommand, and succeed.
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			hint := ""
			if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
				hint = fmt.Sprintf(", did you mean %s?", strings.Join(near, " or "))
			}
			return usagef(cmd, "unknown command %q%s", args[0], hint)
		},
		SuggestionsMinimumDistance: 2,
	}
	cmd.AddCommand(commands...)
	return cmd
}
