package disk

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// productDir is the product's module, as seen from this package, where its tests run.
const productDir = "../.."

// Build builds the program into dir, with further build tags, and returns its path.
func Build(dir string, tags ...string) (string, error) {
	tags = append([]string{"hashicorpmetrics"}, tags...)
	binary := filepath.Join(dir, "quorate")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-tags="+strings.Join(tags, ","), "-o", binary, "./cmd/quorate")
	cmd.Dir = productDir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return binary, nil
}
