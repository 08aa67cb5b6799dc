package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/gateway"
	"github.com/quorate/quorate/node"
)

func newGateway(o *options) *cobra.Command {
	var config string
	var check bool
	cmd := &cobra.Command{
		Use:   "gateway --config FILE",
		Short: "Run a reverse proxy that enforces quotas",
		Long: `gateway runs a reverse proxy: it finds out who calls, asks the cluster whether the caller's allowance has
room, and hands on what may pass. The configuration is a YAML file; gateway/example has one. It is read again, with the
files that it names, when they have changed and then been the same for five seconds, and on SIGHUP at once: a bad one is
refused as a whole, and that before stays in force. Rename finished files into place, as nobody can tell of one that
grows more slowly whether it is complete.
On SIGINT or SIGTERM it says no at /readyz, finishes what is under way, and ends.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if config == "" {
				return usagef(cmd, "--config is required: name the gateway's configuration file")
			}
			cfg, err := gateway.Load(config, os.Environ())
			if err != nil {
				fmt.Fprintln(cmd.ErrOrStderr(), err) // a line for each problem
				return errReported
			}
			if check {
				for _, warning := range cfg.Warnings() {
					fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s\n", warning)
				}
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s is good\n", config)
				return err
			}
			logger := newLogger(cmd.ErrOrStderr(), node.LogConfig{Level: cfg.Log.Level, Format: cfg.Log.Format})
			g, err := gateway.Start(cfg, gateway.Options{Logger: logger})
			if err != nil {
				return err
			}
			return runGateway(cmd.Context(), g)
		},
	}
	cmd.Flags().StringVar(&config, "config", "", "the gateway's configuration file")
	cmd.Flags().BoolVar(&check, "check", false, "only say whether the configuration and its files are good")
	cmd.AddCommand(newGatewayKey(), newGatewayDemo(o))
	return cmd
}

// runGateway runs g until ctx ends, and has it read its configuration at SIGHUP.
func runGateway(ctx context.Context, g *gateway.Gateway) error {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	return g.Run(ctx, hangups)
}

func newGatewayKey() *cobra.Command {
	var tier string
	cmd := &cobra.Command{
		Use:   "key PRINCIPAL",
		Short: "Make an API key of a principal",
		Long: `key prints a fresh API key on standard error, for its caller, and on standard output its entry for the file of
keys, which has the key's digest alone:

  echo 'keys:' > keys.yaml
  quorate gateway key account:acme >> keys.yaml`,
		Args: filledArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			key, entry, err := gateway.NewKey(args[0], tier)
			if err != nil {
				return err
			}
			line, err := entry.Line()
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "the key, which is shown this once: %s\n", key)
			_, err = fmt.Fprintln(cmd.OutOrStdout(), line)
			return err
		},
	}
	cmd.Flags().StringVar(&tier, "tier", "", "the principal's tier")
	return cmd
}
