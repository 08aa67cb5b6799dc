package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"

	"github.com/quorate/quorate/jepsen/process"
)

// Node is a node on an image of its own, and the process that runs it while it is up. It is not safe for
// concurrent use.
type Node struct {
	process.Node
	Image *Image
}

// Ready reports whether the node says that it is.
func (n *Node) Ready(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.HTTP+"/readyz", nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	return err == nil && resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
}

// AwaitSegmentEnd waits until a segment of the node's log grows beyond what was set aside for it, which it does
// with the write that ends it. It looks all the time, since what follows, the begin of the next segment, takes
// only milliseconds.
func (n *Node) AwaitSegmentEnd(ctx context.Context) error {
	before, err := n.largestSegment()
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		now, err := n.largestSegment()
		if err != nil {
			return err
		}
		if now > before {
			return nil
		}
	}
	return fmt.Errorf("no segment of %s ended: %w", n.ID, ctx.Err())
}

// largestSegment is the size of the node's largest segment.
func (n *Node) largestSegment() (largest int64, err error) {
	files, err := filepath.Glob(filepath.Join(n.DataDir, "groups", "p0", "wal", "*.wal"))
	if err != nil {
		return 0, err
	}
	for _, file := range files {
		info, err := os.Stat(file)
		switch {
		case errors.Is(err, fs.ErrNotExist): // it was dropped meanwhile
		case err != nil:
			return 0, err
		default:
			largest = max(largest, info.Size())
		}
	}
	return largest, nil
}
