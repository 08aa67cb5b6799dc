package process

import (
	"context"
	"fmt"
	"time"
)

// lookInterval is between two looks at a condition.
const lookInterval = 50 * time.Millisecond

// Await looks at a condition until it holds or ctx ends. what names it in the error.
func Await(ctx context.Context, what string, condition func() bool) error {
	begin := time.Now()
	look := time.NewTicker(lookInterval)
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
