package main

import (
	"bytes"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/policy/envoyimport"
)

func newPolicyImportEnvoy() *cobra.Command {
	var label string
	cmd := &cobra.Command{
		Use:   "import-envoy FILE…",
		Short: "Make a policy of the configuration of Envoy's ratelimit service",
		Long: `import-envoy prints a policy that enforces the limits of the configuration files of Envoy's ratelimit service,
one for each domain, and takes the same descriptors. What has no exact counterpart is told on standard error, with what
became of it: read that before you apply the policy. The file - is standard input. It needs no cluster.`,
		Example: "  quorate policy import-envoy config/*.yaml > policy.yaml && quorate policy validate policy.yaml",
		Args:    usageArgs(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, files []string) error {
			var sources []envoyimport.Source
			for _, file := range files {
				src, name, err := readPolicy(cmd.InOrStdin(), file)
				if err != nil {
					return err
				}
				sources = append(sources, envoyimport.Source{Name: name, Text: src})
			}
			p, notes, err := envoyimport.Import(label, sources...)
			if err != nil {
				return err
			}
			for _, n := range notes {
				fmt.Fprintln(cmd.ErrOrStderr(), "note:", n)
			}
			var out bytes.Buffer
			if err := writePolicyYAML(&out, p); err != nil {
				return err
			}
			_, err = out.WriteTo(cmd.OutOrStdout())
			return err
		},
	}
	cmd.Flags().StringVar(&label, "version", "imported", "the label of the policy")
	return cmd
}
