package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/internal/errtable"
	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/rpc/client"
)

// defaultTimeout is how long a client command tries: longer than a failover takes, and well within the
// default replay horizon.
const defaultTimeout = 10 * time.Second

// lookPause is between two looks of a command that waits for something.
const lookPause = 300 * time.Millisecond

// session is a command's talk with the cluster.
type session struct {
	*client.Client
	// timeout is how long one question may take.
	timeout time.Duration
	// progress is for what a waiting command has to say.
	progress io.Writer
}

// call asks one question within the session's timeout.
func call[Q, A any](
	ctx context.Context, s *session, method func(context.Context, Q) (A, error), question Q,
) (A, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	a, err := method(ctx, question)
	return a, saidOnce(err)
}

// saidOnce leaves out the answer that err was made of where it is another's words for the same.
func saidOnce(err error) error {
	var e, of *quotaerr.Error
	if errors.As(err, &e) && errors.As(e.Cause, &of) {
		once := *e
		once.Cause = nil
		return &once
	}
	return err
}

// withSession runs f with a client of the cluster.
func (o *options) withSession(cmd *cobra.Command, f func(ctx context.Context, s *session) error) error {
	addrs, err := o.addrs(cmd)
	if err != nil {
		return err
	}
	return o.withSessionOf(cmd, addrs, f)
}

// withSessionOf runs f with a client of the nodes at addrs.
func (o *options) withSessionOf(
	cmd *cobra.Command, addrs []string, f func(ctx context.Context, s *session) error,
) error {
	if o.timeout <= 0 {
		return usagef(cmd, "--timeout is %s: use a time above 0", o.timeout)
	}
	shown, err := o.credentials(cmd)
	if err != nil {
		return err
	}
	c, err := client.New(addrs, client.WithTLS(shown.tls), client.WithToken(shown.token))
	if err != nil {
		return err
	}
	err = f(cmd.Context(), &session{c, o.timeout, cmd.ErrOrStderr()})
	return errors.Join(asStatus(err), c.Close())
}

// withClient runs f with a client of the cluster and a deadline.
func (o *options) withClient(cmd *cobra.Command, f func(ctx context.Context, c *client.Client) error) error {
	return o.withSession(cmd, func(ctx context.Context, s *session) error {
		ctx, cancel := context.WithTimeout(ctx, s.timeout)
		defer cancel()
		return f(ctx, s.Client)
	})
}

// asStatus gives an error of the cluster the exit status that its reason has. A policy that was changed meanwhile
// is for the operator to look at, so it is an error like others.
func asStatus(err error) error {
	if retryable(err) {
		return unavailable(err)
	}
	return err
}

// retryable reports whether err is an answer of the cluster that may be another in a while.
func retryable(err error) bool {
	var e *quotaerr.Error
	return errors.As(err, &e) && errtable.Lookup(e.Reason).Retryable() && e.Reason != quotaerr.PolicyStale
}

// poll looks again and again until look is content. It ends with an error when look has one, or with ctx.
func poll(ctx context.Context, look func() (done bool, err error)) error {
	next := time.NewTicker(lookPause)
	defer next.Stop()
	for {
		if done, err := look(); done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-next.C:
		}
	}
}

// interrupted says what goes on although a waiting command failed, or was ended with ctx, and how to look.
func interrupted(ctx context.Context, err error, format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	if ctx.Err() != nil {
		return fmt.Errorf("interrupted: %s", text)
	}
	return fmt.Errorf("%s: %w", text, err)
}

// lines writes a line about each of several things when it differs from the one before about the same.
type lines struct {
	w    io.Writer
	last map[string]string
}

func newLines(w io.Writer) *lines { return &lines{w, map[string]string{}} }

func (l *lines) say(about, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if l.last[about] != text {
		l.last[about] = text
		fmt.Fprintf(l.w, "%s: %s\n", about, text)
	}
}
