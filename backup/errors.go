package backup

import (
	"errors"
	"fmt"
)

// What can be wrong with a backup. Each error of a reader wraps one of them, or is that of the reader below.
var (
	// ErrForeign: it was never a backup.
	ErrForeign = errors.New("this is no backup")
	// ErrNewer: it is of a format that this program does not know.
	ErrNewer = errors.New("the backup is of a newer format")
	// ErrTruncated: its end is missing.
	ErrTruncated = errors.New("the backup is cut short")
	// ErrDamaged: it is not what was written.
	ErrDamaged = errors.New("the backup is damaged")
)

func foreign(format string, args ...any) error {
	return fmt.Errorf("%w: %s: name a file that `quorate snapshot save` wrote", ErrForeign, fmt.Sprintf(format, args...))
}

func truncated(at int64, where string) error {
	return fmt.Errorf("%w: it ends after %d bytes, %s: use a whole copy of it", ErrTruncated, at, where)
}

func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: %s: use another copy of it", ErrDamaged, fmt.Sprintf(format, args...))
}
