package main

import (
	"cmp"
	"runtime"
	"runtime/debug"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"
)

// buildVersion is set by the linker (-X main.buildVersion=…) when a release or the Makefile builds.
var buildVersion string

// versionInfo says which program this is.
type versionInfo struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"` // of the source, where the build knew it
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// readVersion prefers what the linker was told, then what go install knows of the module.
func readVersion() versionInfo {
	v := versionInfo{Version: buildVersion, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		v.Version = cmp.Or(v.Version, info.Main.Version)
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				v.Revision = s.Value
			case "vcs.modified":
				if s.Value == "true" && v.Revision != "" {
					v.Revision += "-dirty"
				}
			}
		}
	}
	v.Version = cmp.Or(v.Version, "(devel)")
	return v
}

func newVersion(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program",
		Args:  usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := readVersion()
			return o.output.print(cmd.OutOrStdout(), v, func(t table.Writer) {
				t.AppendHeader(table.Row{"version", "revision", "go", "platform"})
				t.AppendRow(table.Row{v.Version, cmp.Or(v.Revision, "-"), v.Go, v.Platform})
			})
		},
	}
}
