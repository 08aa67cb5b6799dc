package run

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/quorate/quorate/jepsen/disk"
	"github.com/quorate/quorate/jepsen/netns"
)

// What a machine may have.
const (
	Namespaces = "namespaces" // networks of the nodes' own
	Disks      = "disks"      // file systems of the nodes' own
)

// Machine tells what this machine has, by trying it, and why it lacks the rest.
func Machine(ctx context.Context) (has map[string]bool, why map[string]string) {
	has, why = map[string]bool{}, map[string]string{}
	try := func(what string, err error) {
		if has[what] = err == nil; err != nil {
			why[what] = err.Error()
		}
	}
	try(Disks, tryDisk(ctx))
	try(Namespaces, netns.Available(ctx))
	return has, why
}

func tryDisk(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "quorate-try-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a folder of the temporary ones
	return disk.Available(ctx, dir)
}

// needs is what a kind of fault needs of the machine; others need nothing.
var needs = map[string]string{"power-cut": Disks, "disk-error": Disks, "disk-full": Disks}

// Lacks is why a kind of fault cannot be made on a machine that has some things; empty when it can.
func Lacks(kind, release string, has map[string]bool, why map[string]string) string {
	need := needs[kind]
	switch {
	case need != "" && !has[need]:
		return fmt.Sprintf("it needs %s: %s", need, strings.ReplaceAll(why[need], "\n", " "))
	case kind == "mixed-versions" && release == "":
		return "it needs another build of the program: say --release"
	case newDrawn(&run{}).acts[kind] == nil:
		return "this program cannot make it"
	}
	return ""
}

// chooseFaults leaves out the faults for which the machine, or this program, lacks something.
func (r *run) chooseFaults(has map[string]bool, why map[string]string) error {
	for _, kind := range r.Options.Faults {
		if !slices.Contains(Kinds(), kind) {
			return fmt.Errorf("there is no fault %q: there are %s", kind, strings.Join(Kinds(), ", "))
		}
	}
	r.config.Faults = r.Options.Faults
	if !has[Namespaces] {
		r.config.Skipped[Namespaces] = "relays on loopback break the network instead: " + why[Namespaces]
	}
	r.Options.Faults = slices.DeleteFunc(slices.Clone(r.Options.Faults), func(kind string) bool {
		not := Lacks(kind, r.Release, has, why)
		if not != "" {
			r.config.Skipped[kind] = not
		}
		return not != ""
	})
	if len(r.Options.Faults) == 0 {
		return fmt.Errorf("none of these faults can be made here: %v", r.config.Skipped)
	}
	r.faults = newDrawn(r)
	return nil
}
