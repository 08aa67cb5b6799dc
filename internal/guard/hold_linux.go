//go:build chaos

package guard

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// holdEnvironment names the variable that says where the process is held. It is one of
//
//   - a point, as Hold is called with: the process stops itself with SIGSTOP;
//   - a point and a number, "plan.seal:2": at the second call of that point;
//   - the absolute path of a file that holds a point, or a point and the word wait. It may be made at any
//     time, by renaming a whole file to that name. The process that is held removes it, and makes another
//     with HeldSuffix that holds its id: so each file holds one process, once, of all those that are given
//     it. With wait, only the caller of Hold stands still, until that other file is removed.
const holdEnvironment = "QUORATE_HOLD"

// HeldSuffix is what the name of the file ends with that tells which process is held.
const HeldSuffix = ".held"

// holdLook is between two looks of a caller that waits.
const holdLook = 5 * time.Millisecond

var (
	holdAt    = os.Getenv(holdEnvironment)
	holdCalls atomic.Int64 // of the point that the variable names
)

// Hold holds the process, or its caller, if the environment says so: nothing after the call happens until
// somebody lets it go on.
func Hold(point string) {
	switch {
	case holdAt == "":
	case strings.HasPrefix(holdAt, "/"):
		holdByFile(point)
	case holdsAt(point):
		stop(point)
	}
}

// stop has the process stop itself. Sent to the thread, the signal is there when the call returns; sent to the
// process, another thread could take it, and this one get ahead meanwhile.
func stop(point string) {
	fmt.Fprintf(os.Stderr, "stops itself at %s\n", point)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP); err != nil {
		panic(fmt.Sprintf("the process cannot stop itself at %s: %v", point, err))
	}
}

// holdsAt reports whether the variable names a point, and the number of this call.
func holdsAt(point string) bool {
	name, number, counted := strings.Cut(holdAt, ":")
	if name != point {
		return false
	}
	want := int64(1)
	if counted {
		var err error
		if want, err = strconv.ParseInt(number, 10, 64); err != nil {
			panic(fmt.Sprintf("%s=%s: give a number after the colon", holdEnvironment, holdAt))
		}
	}
	return holdCalls.Add(1) == want
}

func holdByFile(point string) {
	text, err := os.ReadFile(holdAt)
	if err != nil {
		return // nothing is to be held at present
	}
	words := strings.Fields(string(text))
	if len(words) == 0 || words[0] != point {
		return
	}
	held := holdAt + HeldSuffix
	f, err := os.OpenFile(held, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return // another one is held
	}
	if err == nil {
		_, err = fmt.Fprintln(f, os.Getpid())
		err = errors.Join(err, f.Close(), os.Remove(holdAt))
	}
	if err != nil {
		panic(fmt.Sprintf("the process cannot be held at %s: %v", point, err))
	}
	if len(words) == 1 {
		stop(point)
		return
	}
	fmt.Fprintf(os.Stderr, "waits at %s\n", point)
	look := time.NewTicker(holdLook)
	defer look.Stop()
	for err == nil {
		<-look.C
		_, err = os.Stat(held)
	}
}
