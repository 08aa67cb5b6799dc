//go:build chaos && linux

package chaos

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Shows that a sync takes as long as the file says while it is there, and no time of its own without it.
func TestSlowSync(t *testing.T) {
	defer func(before string) { slowSyncFile = before }(slowSyncFile)
	slowSyncFile = filepath.Join(t.TempDir(), "slow")
	SlowSync()
	const wait = 30 * time.Millisecond
	if err := os.WriteFile(slowSyncFile, []byte(wait.String()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	SlowSync()
	if took := time.Since(begun); took < wait {
		t.Errorf("a sync took %v, want %v", took, wait)
	}
}
