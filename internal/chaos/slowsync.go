//go:build chaos && linux

package chaos

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"
)

// slowSyncEnvironment names the variable with the file, an absolute path, that holds how long a sync takes, "300ms".
// It is put in place whole, by renaming it.
const slowSyncEnvironment = "QUORATE_SLOW_SYNC"

var slowSyncFile = os.Getenv(slowSyncEnvironment)

// SlowSync is called where a store is about to write something and sync it. It waits for as long as the file says that
// a sync takes.
func SlowSync() {
	if slowSyncFile == "" {
		return
	}
	text, err := os.ReadFile(slowSyncFile)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var wait time.Duration
	if err == nil {
		wait, err = time.ParseDuration(strings.TrimSpace(string(text)))
	}
	if err != nil {
		panic(fmt.Sprintf("%s=%s: %v", slowSyncEnvironment, slowSyncFile, err))
	}
	<-time.After(wait)
}
