package cluster

import (
	"context"
	"fmt"
	"time"
)

// await looks at a condition until it holds or ctx ends.
func await(ctx context.Context, what string, condition func() bool) error {
	begin := time.Now()
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for !condition() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("not within %v: %s", time.Since(begin).Round(time.Millisecond), what)
		case <-look.C:
		}
	}
	return nil
}
