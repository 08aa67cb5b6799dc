package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/node"
)

func newServer() *cobra.Command {
	var config string
	cmd := &cobra.Command{
		Use:   "server --config FILE",
		Short: "Run one node",
		Long: `server runs one node until it gets SIGINT or SIGTERM. The configuration is a YAML file; each of its
fields may be set by the environment as well (QUORATE_CLOCK__MAX_DRIFT_PPM for clock.max_drift_ppm).`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if config == "" {
				return usagef(cmd, "--config is required: name the node's configuration file")
			}
			cfg, err := node.LoadConfig(config, os.Environ())
			if err != nil {
				return err
			}
			return serve(cmd.Context(), cfg, newLogger(cmd.ErrOrStderr(), cfg.Log))
		},
	}
	cmd.Flags().StringVar(&config, "config", "", "the node's configuration file")
	return cmd
}

// serve runs one node until ctx ends.
func serve(ctx context.Context, cfg *node.Config, logger *slog.Logger) error {
	n, err := node.Start(ctx, cfg, readVersion().Version, logger, die)
	if err != nil {
		return portTaken(err, "give this node other ports in its configuration")
	}
	return n.Run(ctx)
}

// portTaken adds to an error what to do where it is that another program has the port.
func portTaken(err error, instead string) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%w: end the program that has the port, or %s", err, instead)
	}
	return err
}

// die ends the process at once: after a failed write nothing more may be acknowledged, not even in the
// time that an orderly stop takes.
func die(err error) {
	os.Exit(report(os.Stderr, err)) //nolint:forbidigo // see above
}

func newLogger(w io.Writer, cfg node.LogConfig) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(cfg.Level)); err != nil {
		level = slog.LevelInfo // the configuration has been validated
	}
	opts := &slog.HandlerOptions{Level: level}
	if cfg.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}
