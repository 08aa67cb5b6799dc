package main

import (
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/quorate/quorate/internal/identity"
	"github.com/quorate/quorate/policy"
)

func newCert(o *options) *cobra.Command {
	cmd := newGroup("cert", "Make the certificates of a cluster",
		newCertCA(o), newCertNode(o), newCertGateway(o),
		newCertCaller(o, identity.Admin, "Make the certificate of an administrator, who may use all commands but check"),
		newCertCaller(o, identity.Viewer, "Make the certificate of somebody who looks on, or of a metrics collector"),
		newCertGossip(o),
	)
	cmd.Long = `cert makes a CA for a cluster and certificates by it: for each node, each gateway, and the people who
operate the cluster or look on. Whoever has ca-key.pem can be anybody: keep it off the nodes. No file is written over:
to renew a certificate make it in another directory (--out), then move it and its key into place, the key first.
Running nodes take new files within seconds.`
	return cmd
}

// certFlags are the flags that the commands under cert share.
type certFlags struct {
	dir, out string
	valid    durationFlag
}

func (f *certFlags) add(cmd *cobra.Command, valid time.Duration) {
	f.valid = durationFlag(valid)
	cmd.Flags().Var(&f.valid, "valid", "how long it is valid")
	if cmd.Name() == "ca" {
		cmd.Flags().StringVar(&f.dir, "dir", ".", "where to put ca.pem and ca-key.pem")
		return
	}
	cmd.Flags().StringVar(&f.dir, "dir", ".", "where ca.pem and ca-key.pem are")
	cmd.Flags().StringVar(&f.out, "out", "", "where to put the certificate and its key (default: --dir)")
}

// durationFlag is a flag's duration, which may be in days.
type durationFlag time.Duration

func (d *durationFlag) String() string { return policy.FormatDuration(int64(*d)) }

// Type is the word for the value in the help.
func (d *durationFlag) Type() string { return "duration" }

// Set reads a duration above 0.
func (d *durationFlag) Set(text string) error {
	nanos, err := policy.ParseDuration(text)
	if err != nil {
		return fmt.Errorf("%q %w", text, err)
	}
	if nanos <= 0 {
		return fmt.Errorf("%q is not above 0", text)
	}
	*d = durationFlag(nanos)
	return nil
}

func newCertCA(o *options) *cobra.Command {
	f, cluster := &certFlags{}, ""
	cmd := &cobra.Command{
		Use:   "ca",
		Short: "Make a cluster's CA",
		Long: `ca makes the CA of a cluster, ca.pem and ca-key.pem. The cluster's id is part of it and of all certificates by
it: give that of the configuration, or take the one that is made up and printed.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cluster == "" {
				cluster = uuid.NewString()
			}
			made, err := identity.MakeCA(f.dir, cluster, time.Duration(f.valid))
			if err != nil {
				return err
			}
			return o.printMade(cmd, cluster, made)
		},
	}
	f.add(cmd, identity.DefaultValidCA)
	cmd.Flags().StringVar(&cluster, "cluster-id", "", "the cluster's id (default: a new one)")
	return cmd
}

func newCertNode(o *options) *cobra.Command {
	f, hosts := &certFlags{}, []string{}
	cmd := &cobra.Command{
		Use:   "node ID --host HOST[,HOST…]",
		Short: "Make the certificate of a node",
		Long: `node makes the certificate of the node with an ID, as node_id names it. --host is each name and IP address
under which the other nodes and the callers reach it.`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(hosts) == 0 {
				return usagef(cmd, "--host is required: name each host under which the node is reached")
			}
			return o.issue(cmd, f, identity.ID{Role: identity.Node, Name: args[0]}, hosts)
		},
	}
	f.add(cmd, identity.DefaultValid)
	cmd.Flags().StringSliceVar(&hosts, "host", nil, "names and IP addresses under which the node is reached")
	return cmd
}

func newCertGateway(o *options) *cobra.Command {
	f, classes := &certFlags{}, []string{}
	cmd := &cobra.Command{
		Use:   "gateway NAME [--classes CLASS[,CLASS…]]",
		Short: "Make the certificate of a gateway, which may ask for decisions",
		Long: `gateway makes the certificate of a gateway. Its NAME is part of every decision's record: processes that share
it share their decision ids. With --classes it may ask for these API classes only, by the very names.`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.issue(cmd, f, identity.ID{Role: identity.Gateway, Name: args[0], Classes: classes}, nil)
		},
	}
	f.add(cmd, identity.DefaultValid)
	cmd.Flags().StringSliceVar(&classes, "classes", nil, "API classes that it may ask for (default: all)")
	return cmd
}

func newCertCaller(o *options, role identity.Role, short string) *cobra.Command {
	f := &certFlags{}
	cmd := &cobra.Command{
		Use:   role.String() + " NAME",
		Short: short,
		Args:  usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.issue(cmd, f, identity.ID{Role: role, Name: args[0]}, nil)
		},
	}
	f.add(cmd, identity.DefaultValid)
	return cmd
}

func (o *options) issue(cmd *cobra.Command, f *certFlags, id identity.ID, hosts []string) error {
	ca, err := identity.OpenAuthority(f.dir)
	if err != nil {
		return err
	}
	out := f.out
	if out == "" {
		out = f.dir
	}
	made, err := ca.Issue(out, id, hosts, time.Duration(f.valid))
	if err != nil {
		return err
	}
	return o.printMade(cmd, ca.Cluster, made)
}

// certView is a certificate that was made, as it is printed.
type certView struct {
	ClusterID string    `json:"cluster_id"`
	Identity  string    `json:"identity"`
	Cert      string    `json:"cert"`
	Key       string    `json:"key"`
	NotAfter  time.Time `json:"not_after"`
}

func (o *options) printMade(cmd *cobra.Command, cluster string, m identity.Made) error {
	v := certView{cluster, m.URI, m.Cert, m.Key, m.NotAfter.UTC().Truncate(time.Second)}
	return o.output.print(cmd.OutOrStdout(), v, func(t table.Writer) {
		t.AppendHeader(table.Row{"identity", "certificate", "key", "ends"})
		t.AppendRow(table.Row{v.Identity, v.Cert, v.Key, v.NotAfter.Format(time.RFC3339)})
	})
}
