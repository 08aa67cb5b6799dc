package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/quorate/quorate/internal/errtable"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/sdk"
	"github.com/quorate/quorate/sdk/quotatest"
)

// answersScript is what is asked, and what is to be answered.
const answersScript = "testdata/answers/script"

// Shows that a real cluster and the fake of package quotatest give the same answers to one script, field by field,
// asked over gRPC and through the SDK; and that they tell the same waits, as exactly as it can be known when the real
// one decided. Run with -rewrite to accept changed answers, and read the diff.
func TestFakeAnswersAsTheRealCluster(t *testing.T) {
	t.Parallel()
	for name, connect := range map[string]func(*testing.T, []string, ...grpc.DialOption) asker{
		"grpc": mustAskByGRPC, "sdk": mustAskBySDK,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			was := &course{}
			dev := &devBackend{t: t}
			datadriven.RunTest(t, answersScript, func(t *testing.T, d *datadriven.TestData) string {
				if dev.ask == nil {
					dev.start(d.Input, connect)
				}
				return was.step(t, d, dev)
			})
			fake := &course{times: was.answers}
			mock := &fakeBackend{t: t, course: fake}
			datadriven.RunTest(t, answersScript, func(t *testing.T, d *datadriven.TestData) string {
				if mock.ask == nil {
					mock.start(d.Input, connect)
				}
				return fake.step(t, d, mock)
			})
			mustTellTheSameWaits(t, was.answers, fake.answers)
		})
	}
}

// asker asks for decisions.
type asker interface {
	check(ctx context.Context, req *quoratev1.CheckRequest) (*quoratev1.Decision, error)
	peek(ctx context.Context, req *quoratev1.PeekRequest) (*quoratev1.PeekResponse, error)
	// await waits until the asker knows of a policy revision that is in force everywhere.
	await(t *testing.T, revision uint64)
}

// backend is what a script is run on.
type backend interface {
	asker
	apply(policy string)
	turn(class string, disabled bool)
	pass(d time.Duration)
}

// told is one answer, when it was asked for and when it had come, and the waits that are in it.
type told struct {
	what       string
	sent, came time.Time
	waits      []wait
}

// wait is a number of milliseconds, of which limit, whose window is how long.
type wait struct {
	of     string
	millis int64
	window time.Duration
}

// course is one run of the script.
type course struct {
	times    []told // of an earlier run, whose instants this one follows
	answers  []told
	revision uint64
}

// step does one directive.
func (c *course) step(t *testing.T, d *datadriven.TestData, on backend) string {
	t.Helper()
	switch d.Cmd {
	case "policy":
		if c.revision++; c.revision > 1 {
			on.apply(d.Input)
			on.await(t, c.revision)
		}
		return ""
	case "enable", "disable":
		c.revision++
		on.turn(d.CmdArgs[0].Key, d.Cmd == "disable")
		on.await(t, c.revision)
		return ""
	case "pass":
		on.pass(mustDuration(t, d.CmdArgs[0].Key))
		return ""
	case "check", "peek":
		var out strings.Builder
		for line := range strings.Lines(d.Input) {
			line = strings.TrimSpace(line)
			text := c.ask(t, d.Cmd, line, on)
			fmt.Fprintf(&out, "%s: %s\n", line, text)
		}
		return out.String()
	}
	t.Fatalf("%s: there is no directive %q", d.Pos, d.Cmd)
	return ""
}

func mustDuration(t *testing.T, s string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// ask asks one line, and returns what of the answer is the same whenever it is given.
func (c *course) ask(t *testing.T, what, line string, on asker) (text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), askTimeout)
	defer cancel()
	now := told{what: line, sent: time.Now()}
	if what == "check" {
		d, err := on.check(ctx, mustCheck(t, line))
		now.came = time.Now()
		text, now.waits = decisionText(d, err)
	} else {
		f := strings.Fields(line)
		p, err := on.peek(ctx, &quoratev1.PeekRequest{Principal: named(f[0]), ApiClass: named(f[1])})
		now.came = time.Now()
		text, now.waits = peekText(p, err)
	}
	c.answers = append(c.answers, now)
	return text
}

// named is a name of the script, in which - is the empty one.
func named(s string) string {
	if s == "-" {
		return ""
	}
	return s
}

// mustCheck reads a line: principal class id, and cost=, tier= and also=class:cost,… as needed.
func mustCheck(t *testing.T, line string) *quoratev1.CheckRequest {
	t.Helper()
	f := strings.Fields(line)
	req := &quoratev1.CheckRequest{Principal: named(f[0]), ApiClass: named(f[1]), DecisionId: f[2]}
	for _, option := range f[3:] {
		key, value, _ := strings.Cut(option, "=")
		switch key {
		case "cost":
			req.Cost = mustInt(t, value)
		case "tier":
			req.Tier = value
		case "also":
			for _, charge := range strings.Split(value, ",") {
				class, cost, ok := strings.Cut(charge, ":")
				a := &quoratev1.Charge{ApiClass: class}
				if ok {
					a.Cost = mustInt(t, cost)
				}
				req.Also = append(req.Also, a)
			}
		default:
			t.Fatalf("%q has an option that there is not", line)
		}
	}
	return req
}

func mustInt(t *testing.T, s string) *int64 {
	t.Helper()
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return &n
}

// reasonOf is why there is no decision.
func reasonOf(err error) string {
	var e *sdk.Error
	if errors.As(err, &e) {
		return string(e.Reason)
	}
	return string(errtable.FromStatus(err).Reason)
}

func decisionText(d *quoratev1.Decision, err error) (string, []wait) {
	if err != nil {
		return "error " + reasonOf(err), nil
	}
	if d.GetReason() == "endpoint_disabled" { // which a gateway may know by itself
		return d.GetReason(), nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %d remain, by %s", d.GetReason(), d.GetRemaining(), d.GetPolicyVersion())
	var waits []wait
	if d.GetLimit() != "" {
		fmt.Fprintf(&b, ", denied by %s", d.GetLimit())
		window := time.Duration(0)
		for _, l := range d.GetLimits() {
			if l.GetName() == d.GetLimit() {
				window = l.GetWindow().AsDuration()
			}
		}
		waits = append(waits, wait{"retry", d.GetRetryAfterMs(), window})
	}
	if d.GetReplayed() {
		b.WriteString(", replayed")
	}
	if d.GetRecorded() && d.GetOutcome() == quoratev1.Outcome_OUTCOME_ALLOWED { // a denial may be told without a record
		b.WriteString(", recorded")
	}
	for _, l := range d.GetLimits() {
		fmt.Fprintf(&b, "; %s: %d of %d in %v", l.GetName(), l.GetRemaining(), l.GetLimit(), l.GetWindow().AsDuration())
		waits = append(waits, wait{l.GetName(), l.GetResetMs(), l.GetWindow().AsDuration()})
	}
	return b.String(), waits
}

func peekText(p *quoratev1.PeekResponse, err error) (string, []wait) {
	if err != nil {
		return "error " + reasonOf(err), nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "class %s, %d remain, by %s", p.GetApiClass(), p.GetRemaining(), p.GetPolicyVersion())
	if p.GetDisabled() {
		b.WriteString(", disabled")
	}
	var waits []wait
	for _, l := range p.GetLimits() {
		fmt.Fprintf(&b, "; %s: %d used, %d of %d in %v", l.GetName(), l.GetUsed(), l.GetRemaining(), l.GetLimit(),
			l.GetWindow().AsDuration())
		waits = append(waits, wait{l.GetName(), l.GetResetMs(), l.GetWindow().AsDuration()})
	}
	return b.String(), waits
}

// mustTellTheSameWaits compares the waits of the real cluster with those of the fake, which has decided each check at
// the instant at which it was sent to the real one. The real one decided until the answer had come, so a wait is longer
// by what the admission took at most, and shorter by what this check took, and slower by the drift that is allowed for.
func mustTellTheSameWaits(t *testing.T, was, fake []told) {
	t.Helper()
	if len(was) != len(fake) || len(was) == 0 {
		t.Fatalf("%d real answers and %d of the fake", len(was), len(fake))
	}
	slowest, compared, furthest := time.Duration(0), 0, int64(0)
	for _, r := range was {
		slowest = max(slowest, r.came.Sub(r.sent))
	}
	for i, r := range was {
		f := fake[i]
		if r.what != f.what || len(r.waits) != len(f.waits) {
			t.Errorf("%s has the waits %v, and %s of the fake %v", r.what, r.waits, f.what, f.waits)
			continue
		}
		for j, w := range r.waits {
			off := w.millis - f.waits[j].millis
			most := slowest.Milliseconds() + 2 + int64(w.window/1000/time.Millisecond)
			least := -r.came.Sub(r.sent).Milliseconds() - 2
			if off > most || off < least || (w.millis > 0) != (f.waits[j].millis > 0) {
				t.Errorf("%s: %s is told to take %d ms, by the fake %d ms: off by %d, and %d to %d are right",
					r.what, w.of, w.millis, f.waits[j].millis, off, least, most)
			}
			compared++
			furthest = max(furthest, off, -off)
		}
	}
	t.Logf("%d answers with %d waits, up to %d ms apart; the slowest answer took %v", len(was), compared, furthest, slowest)
	if compared < 50 {
		t.Errorf("only %d waits were compared", compared)
	}
}

// devBackend is a real cluster.
type devBackend struct {
	asker
	t   *testing.T
	p   *processes
	dir string
	ask asker
}

func (b *devBackend) start(policy string, connect func(*testing.T, []string, ...grpc.DialOption) asker) {
	b.t.Helper()
	b.dir = b.t.TempDir()
	b.p = mustStart(b.t, b.t.TempDir(), mustFreePorts(b.t, 3), "--policy", b.file(policy))
	b.ask = connect(b.t, b.p.rotated(0))
	b.asker = b.ask
}

func (b *devBackend) file(policy string) string {
	name := filepath.Join(b.dir, "policy.yaml")
	mustPut(b.t, name, policy)
	return name
}

func (b *devBackend) apply(policy string) { b.run("policy", "apply", b.file(policy), "--wait") }

func (b *devBackend) turn(class string, disabled bool) {
	b.run("class", map[bool]string{true: "disable", false: "enable"}[disabled], class, "--wait")
}

func (b *devBackend) run(args ...string) {
	b.t.Helper()
	if r := b.p.ask(b.t, args...); r.status != exitDone {
		b.t.Fatalf("%v: %+v", args, r)
	}
}

func (b *devBackend) pass(d time.Duration) { <-time.After(d) }

// fakeBackend is the fake. Its time is that of an earlier run.
type fakeBackend struct {
	asker
	t      *testing.T
	course *course
	server *quotatest.Server
	ask    asker
}

func (b *fakeBackend) start(policy string, connect func(*testing.T, []string, ...grpc.DialOption) asker) {
	b.t.Helper()
	b.server = quotatest.Start(b.t, policy, quotatest.WithNodes(3), quotatest.WithPartitions(3),
		quotatest.WithClock(b.clock))
	b.ask = connect(b.t, b.server.Addrs(), b.server.DialOptions()...)
	b.asker = b.ask
}

// clock is when what is asked next was asked in the earlier run.
func (b *fakeBackend) clock() time.Time {
	return b.course.times[min(len(b.course.answers), len(b.course.times)-1)].sent
}

func (b *fakeBackend) apply(policy string) {
	b.t.Helper()
	if err := b.server.Apply(policy); err != nil {
		b.t.Fatal(err)
	}
}

func (b *fakeBackend) turn(class string, disabled bool) {
	b.t.Helper()
	f := b.server.Enable
	if disabled {
		f = b.server.Disable
	}
	if err := f(class); err != nil {
		b.t.Fatal(err)
	}
}

func (b *fakeBackend) pass(time.Duration) {}

// grpcAsker asks the nodes in turn.
type grpcAsker struct {
	nodes []quoratev1.QuotaClient
	next  int
}

func mustAskByGRPC(t *testing.T, addrs []string, opts ...grpc.DialOption) asker {
	t.Helper()
	a := &grpcAsker{}
	opts = append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))
	for _, addr := range addrs {
		conn, err := grpc.NewClient(addr, opts...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
		})
		a.nodes = append(a.nodes, quoratev1.NewQuotaClient(conn))
	}
	return a
}

func (a *grpcAsker) node() quoratev1.QuotaClient {
	a.next++
	return a.nodes[a.next%len(a.nodes)]
}

func (a *grpcAsker) await(*testing.T, uint64) {}

func (a *grpcAsker) check(ctx context.Context, req *quoratev1.CheckRequest) (*quoratev1.Decision, error) {
	return a.node().CheckAndConsume(ctx, req)
}

func (a *grpcAsker) peek(ctx context.Context, req *quoratev1.PeekRequest) (*quoratev1.PeekResponse, error) {
	return a.node().Peek(ctx, req)
}

// sdkAsker asks through the SDK.
type sdkAsker struct{ client *sdk.Client }

func mustAskBySDK(t *testing.T, addrs []string, opts ...grpc.DialOption) asker {
	t.Helper()
	c, err := sdk.New(addrs, sdk.WithDialOptions(opts...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return sdkAsker{c}
}

// await waits for the watch: the SDK itself refuses a class that was last known disabled.
func (a sdkAsker) await(t *testing.T, revision uint64) {
	t.Helper()
	until(t, "the SDK is told of a revision", func() bool { return a.client.Stats().PolicyRevision >= revision })
}

func (a sdkAsker) check(ctx context.Context, req *quoratev1.CheckRequest) (*quoratev1.Decision, error) {
	options := []sdk.CheckOption{sdk.WithID(req.GetDecisionId()), sdk.WithTier(req.GetTier())}
	if req.Cost != nil {
		options = append(options, sdk.WithCost(req.GetCost()))
	}
	for _, also := range req.GetAlso() {
		options = append(options, sdk.WithAlso(sdk.Charge{Class: also.GetApiClass(), Cost: also.GetCost()}))
	}
	d, err := a.client.Check(ctx, req.GetPrincipal(), req.GetApiClass(), options...)
	if err != nil {
		return nil, err
	}
	return d.Proto(), nil
}

func (a sdkAsker) peek(ctx context.Context, req *quoratev1.PeekRequest) (*quoratev1.PeekResponse, error) {
	return a.client.Peek(ctx, req.GetPrincipal(), req.GetApiClass(), req.GetTier())
}
