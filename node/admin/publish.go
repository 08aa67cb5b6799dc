package admin

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/quorate/quorate/control"
	"github.com/quorate/quorate/control/bodies"
	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/policy"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/rpc"
)

// UploadPolicy keeps a body on this node, if it is a policy, and brings it to the others. It puts nothing in force.
func (a *Admin) UploadPolicy(
	ctx context.Context, who rpc.Actor, digest []byte, chunks iter.Seq2[[]byte, error],
) (*quoratev1.UploadPolicyResponse, error) {
	refuse := func(err error) (*quoratev1.UploadPolicyResponse, error) {
		return nil, a.refuse(ctx, who, "policy.upload", fmt.Sprintf("body %.64x", digest), err)
	}
	c, err := a.cluster.Control()
	if err != nil {
		return nil, err
	}
	d, err := digestOf(digest)
	if err != nil {
		return refuse(err)
	}
	epoch := c.State().BodyEpoch
	size, err := c.Bodies().Put(d, epoch, chunks)
	if err != nil {
		return refuse(bodyError(err))
	}
	if _, err := a.body(ctx, c, d); err != nil {
		return refuse(err)
	}
	held, of, err := a.cluster.SpreadBody(ctx, d, epoch)
	if err != nil {
		a.logger.Info("an uploaded policy is not on all nodes", "body", d.String(), "held", held, "nodes", of, "error", err)
	}
	return &quoratev1.UploadPolicyResponse{Size: size, Held: count(held), Nodes: count(of)}, nil
}

func count(n int) uint32 { return uint32(min(max(n, 0), 1<<20)) }

func digestOf(b []byte) (state.Digest, error) {
	if len(b) != len(state.Digest{}) {
		return state.Digest{}, quotaerr.New(quotaerr.InvalidArgument, "digest: it has %d bytes, a SHA-256 has 32", len(b))
	}
	return state.Digest(b), nil
}

// bodyError is the public error of taking a body in.
func bodyError(err error) error {
	var public *quotaerr.Error
	switch {
	case errors.Is(err, bodies.ErrMismatch):
		return quotaerr.Wrap(quotaerr.InvalidArgument, err, "the body does not have the digest: send it again")
	case errors.Is(err, bodies.ErrTooLarge):
		return quotaerr.Wrap(quotaerr.InvalidArgument, err,
			"the body is too large: send pieces of at most %d bytes, %d in all", rpc.MaxChunkBytes, state.MaxBodyBytes)
	case errors.Is(err, bodies.ErrBusy):
		return quotaerr.Wrap(quotaerr.Overloaded, err, "this node receives other policies at present: try again")
	case errors.As(err, &public):
		return public
	}
	return quotaerr.Wrap(quotaerr.Internal, err, "the body could not be kept; see the node's log")
}

// body decodes a body, which is fetched if it is not here, and says what is wrong with it.
func (a *Admin) body(ctx context.Context, c *control.Control, d state.Digest) (*policy.Policy, error) {
	p, err := c.Body(ctx, d)
	if missing(err) {
		if err := a.fetch(ctx, c, d, err); err != nil {
			return nil, quotaerr.Wrap(quotaerr.InvalidArgument, err, "no node has a policy with this digest: upload it first")
		}
		p, err = c.Body(ctx, d)
	}
	var problems policy.Problems
	switch {
	case err == nil:
		return p, nil
	case ctx.Err() != nil:
		return nil, quotaerr.Wrap(quotaerr.Overloaded, err, "the policy could not be read in time: try again")
	case errors.As(err, &problems):
		return nil, quotaerr.Wrap(quotaerr.InvalidArgument, err, "the policy is not valid: %s", words(problems.Error(), 4096))
	case errors.Is(err, control.ErrUnusable):
		return nil, quotaerr.Wrap(quotaerr.InvalidArgument, err,
			"the body is no policy that this program knows: send the canonical encoding, as `quorate policy apply` does")
	}
	return nil, quotaerr.Wrap(quotaerr.Internal, err, "the policy could not be read; see the node's log")
}

// missing says that a body is not here, or damaged.
func missing(err error) bool {
	return errors.Is(err, bodies.ErrNotFound) || errors.Is(err, bodies.ErrMismatch)
}

// fetch makes a body local that is missing here for the given reason.
func (a *Admin) fetch(ctx context.Context, c *control.Control, d state.Digest, why error) error {
	if errors.Is(why, bodies.ErrMismatch) {
		a.logger.Error("a policy body on this node is damaged: fetching it anew", "error", why)
		if err := c.Bodies().Discard(d); err != nil {
			return err
		}
	}
	return a.cluster.FetchBody(ctx, d)
}

// policyOf is the policy of a revision. Its body is fetched if it is not here.
func (a *Admin) policyOf(ctx context.Context, c *control.Control, r *state.Revision) (*policy.Policy, error) {
	p, err := c.Policy(ctx, r)
	if missing(err) {
		if err = a.fetch(ctx, c, r.Body, err); err == nil {
			p, err = c.Policy(ctx, r)
		}
	}
	if err != nil {
		return nil, quotaerr.Wrap(quotaerr.NoQuorum, err,
			"the policy of revision %d is not on this node, and no other could give it: make the other nodes reachable",
			r.Number)
	}
	return p, nil
}

// ApplyPolicy puts an uploaded policy in force.
func (a *Admin) ApplyPolicy(
	ctx context.Context, who rpc.Actor, req *quoratev1.ApplyPolicyRequest,
) (*quoratev1.ApplyPolicyResponse, error) {
	return a.publish(ctx, who, func(c *control.Control, s *state.State) (*change, error) {
		object := fmt.Sprintf("body %.64x", req.GetDigest())
		p, d, err := a.mayPublish(ctx, c, s, req)
		if p != nil {
			object = "policy " + p.Version
		}
		switch {
		case err != nil && req.GetDryRun():
			return nil, err
		case err != nil:
			return nil, a.refuse(ctx, who, "policy.publish", object, err)
		}
		size, err := sizeOf(c, d)
		if err != nil {
			return nil, err
		}
		out := &change{policy: p, body: d, command: func(epoch uint64) *state.Command {
			return &state.Command{Kind: state.KindPublish, Comment: req.GetComment(), Publish: &state.Publish{
				Base: fsm.Revision(req.GetBase()), Label: p.Version, Body: d, Bytes: size, Held: true, BodyEpoch: epoch,
			}}
		}}
		if req.GetDryRun() {
			out.dry = &state.Revision{
				Number: s.RevisionNumber() + 1, Label: p.Version, Kind: state.RevisionPublish, Base: s.RevisionNumber(), Body: d,
				Bytes: size, Author: who.Name, WallNanos: a.now().UnixNano(), Comment: req.GetComment(),
			}
		}
		return out, nil
	})
}

// change is a policy that may be put in force.
type change struct {
	policy *policy.Policy
	body   state.Digest
	dry    *state.Revision // the revision that it would be, where it is only to be told
	// command puts it in force once a majority of nodes has said, under this body epoch, that it holds the body.
	command func(epoch uint64) *state.Command
}

// publish puts the policy in force that check, which refuses what may not be, makes against the present state.
func (a *Admin) publish(
	ctx context.Context, who rpc.Actor, check func(*control.Control, *state.State) (*change, error),
) (*quoratev1.ApplyPolicyResponse, error) {
	done, err := a.alone(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	c, s, err := a.leading(ctx)
	if err != nil {
		return nil, err
	}
	to, err := check(c, s)
	if err != nil {
		return nil, err
	}
	diff := a.difference(ctx, c, s.InForce(), to.policy)
	if to.dry != nil {
		return diff.response(to.dry), nil
	}
	epoch, err := a.hold(ctx, c, to.body)
	if err != nil {
		return nil, err
	}
	cmd := to.command(epoch)
	cmd.Difference = diff.text()
	r, err := a.propose(ctx, who, cmd, c.Propose)
	if err != nil {
		return nil, err
	}
	return diff.made(c, r)
}

// alone lets one policy at a time be put in force by this node: each may need much memory.
func (a *Admin) alone(ctx context.Context) (done func(), err error) {
	select {
	case a.publishing <- struct{}{}:
		return func() { <-a.publishing }, nil
	case <-ctx.Done():
		return nil, quotaerr.Wrap(quotaerr.Overloaded, ctx.Err(), "other policies are being put in force: try again")
	}
}

// mayPublish checks all of a publish that can be known before it is proposed. The policy is there with an error,
// too, once it is known.
func (a *Admin) mayPublish(
	ctx context.Context, c *control.Control, s *state.State, req *quoratev1.ApplyPolicyRequest,
) (*policy.Policy, state.Digest, error) {
	d, err := digestOf(req.GetDigest())
	if err != nil {
		return nil, d, err
	}
	if err := baseIs(s, req.GetBase()); err != nil {
		return nil, d, err
	}
	p, err := a.body(ctx, c, d)
	if err != nil {
		return nil, d, err
	}
	for _, r := range s.Revisions {
		if r.Label == p.Version {
			return p, d, quotaerr.New(quotaerr.InvalidArgument,
				"version %q was given to revision %d before: give this policy another", p.Version, r.Number)
		}
	}
	return p, d, nil
}

// baseIs refuses what was made against another revision than the one in force.
func baseIs(s *state.State, base uint64) error {
	if now := uint64(s.RevisionNumber()); base != now {
		return quotaerr.New(quotaerr.PolicyStale,
			"policy revision %d is in force, not %d: look at what has changed, then repeat", now, base)
	}
	return nil
}

func sizeOf(c *control.Control, d state.Digest) (int64, error) {
	body, size, err := c.Bodies().Get(d)
	if err == nil {
		err = body.Close()
	}
	if err != nil {
		return 0, quotaerr.Wrap(quotaerr.Internal, err, "the policy's body could not be read; see the node's log")
	}
	return size, nil
}

// hold makes sure that a majority of nodes holds a body, and says under which body epoch they have said so.
func (a *Admin) hold(ctx context.Context, c *control.Control, d state.Digest) (epoch uint64, err error) {
	epoch = c.State().BodyEpoch
	held, of, err := a.cluster.SpreadBody(ctx, d, epoch)
	if 2*held <= of {
		return 0, quotaerr.Wrap(quotaerr.NoQuorum, err,
			"only %d of %d nodes hold the policy: make the others reachable, then repeat", held, of)
	}
	return epoch, nil
}

// DownloadPolicy reads a revision's policy, its label and switches set. It is answered by any node, as that has it
// where it cannot catch up.
func (a *Admin) DownloadPolicy(
	ctx context.Context, _ rpc.Actor, req *quoratev1.DownloadPolicyRequest,
) (*quoratev1.Revision, iter.Seq2[[]byte, error], error) {
	c, err := a.cluster.Control()
	if err != nil {
		return nil, nil, err
	}
	if err := a.catchUp(ctx, c); err != nil {
		a.logger.Info("a policy is read as this node has it", "error", err)
	}
	r, err := revisionOr(c.State(), req.GetRevision())
	if err != nil {
		return nil, nil, err
	}
	if r.Kind == state.RevisionPublish { // its body is what is in force
		if has, err := c.Bodies().Has(r.Body, c.State().BodyEpoch); has && err == nil {
			return revisionOf(r), cutTo(ctx, c.Bodies().Chunks(r.Body)), nil
		}
	}
	p, err := a.policyOf(ctx, c, r)
	if err != nil {
		return nil, nil, err
	}
	encoded := p.AppendBinary(make([]byte, 0, r.Bytes+r.Bytes/8))
	return revisionOf(r), cutTo(ctx, func(yield func([]byte, error) bool) { yield(encoded, nil) }), nil
}

// cutTo cuts chunks to what one message carries, until ctx ends.
func cutTo(ctx context.Context, chunks iter.Seq2[[]byte, error]) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for chunk, err := range chunks {
			if err != nil {
				yield(nil, quotaerr.Wrap(quotaerr.Internal, err, "the policy's body could not be read; see the node's log"))
				return
			}
			for piece := range slices.Chunk(chunk, rpc.MaxChunkBytes) {
				if err := ctx.Err(); err != nil {
					yield(nil, err)
					return
				}
				if !yield(piece, nil) {
					return
				}
			}
		}
	}
}
