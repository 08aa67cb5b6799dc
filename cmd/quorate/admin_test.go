package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/quorate/quorate/internal/errtable"
	"github.com/quorate/quorate/policy"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// adminScript is a node that answers operators' calls as a test says: answers has, for the name of a request, an
// answer or an error for each time that it comes, the last one for ever.
type adminScript struct {
	quoratev1.UnimplementedAdminServer

	mu      sync.Mutex // guards the rest
	answers map[string][]any
	asked   []proto.Message
	body    []byte // the last that was uploaded
	policy  []byte // to download
}

// mustServeAdmin serves s on loopback until the test ends, and points the program there.
func mustServeAdmin(t *testing.T, s *adminScript) {
	t.Helper()
	setCredentials(t, "", "", "", "")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	quoratev1.RegisterAdminServer(g, s)
	done := make(chan error, 1)
	go func() { done <- g.Serve(l) }()
	t.Cleanup(func() {
		g.Stop()
		if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) { // before it began
			t.Error(err)
		}
	})
	t.Setenv(addrEnv, l.Addr().String())
}

// answer notes a request and finds its answer.
func answer[A proto.Message](ctx context.Context, s *adminScript, req proto.Message) (A, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, proto.Clone(req))
	var none A
	name := string(req.ProtoReflect().Descriptor().Name())
	script := s.answers[name]
	if len(script) == 0 {
		return none, errtable.ToStatus(ctx, quotaerr.New(quotaerr.Internal, "no answer to %s", name)).Err()
	}
	if len(script) > 1 {
		s.answers[name] = script[1:]
	}
	switch a := script[0].(type) {
	case A:
		return a, nil
	case error:
		return none, errtable.ToStatus(ctx, a).Err()
	default:
		return none, errors.New("the script has an answer of another kind")
	}
}

// mustHaveAsked checks which requests came, in order.
func (s *adminScript) mustHaveAsked(t *testing.T, want ...proto.Message) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if diff := cmp.Diff(want, s.asked, protocmp.Transform()); diff != "" {
		t.Errorf("asked: %s", diff)
	}
	s.asked = nil
}

func (s *adminScript) ClusterStatus(
	ctx context.Context, req *quoratev1.ClusterStatusRequest,
) (*quoratev1.ClusterStatusResponse, error) {
	return answer[*quoratev1.ClusterStatusResponse](ctx, s, req)
}

func (s *adminScript) InitCluster(
	ctx context.Context, req *quoratev1.InitClusterRequest,
) (*quoratev1.InitClusterResponse, error) {
	return answer[*quoratev1.InitClusterResponse](ctx, s, req)
}

func (s *adminScript) ListNodes(
	ctx context.Context, req *quoratev1.ListNodesRequest,
) (*quoratev1.ListNodesResponse, error) {
	return answer[*quoratev1.ListNodesResponse](ctx, s, req)
}

func (s *adminScript) AddNode(
	ctx context.Context, req *quoratev1.AddNodeRequest,
) (*quoratev1.AddNodeResponse, error) {
	return answer[*quoratev1.AddNodeResponse](ctx, s, req)
}

func (s *adminScript) DrainNode(
	ctx context.Context, req *quoratev1.DrainNodeRequest,
) (*quoratev1.DrainNodeResponse, error) {
	return answer[*quoratev1.DrainNodeResponse](ctx, s, req)
}

func (s *adminScript) RemoveNode(
	ctx context.Context, req *quoratev1.RemoveNodeRequest,
) (*quoratev1.RemoveNodeResponse, error) {
	return answer[*quoratev1.RemoveNodeResponse](ctx, s, req)
}

func (s *adminScript) ReplaceNode(
	ctx context.Context, req *quoratev1.ReplaceNodeRequest,
) (*quoratev1.ReplaceNodeResponse, error) {
	return answer[*quoratev1.ReplaceNodeResponse](ctx, s, req)
}

func (s *adminScript) TransferLeader(
	ctx context.Context, req *quoratev1.TransferLeaderRequest,
) (*quoratev1.TransferLeaderResponse, error) {
	return answer[*quoratev1.TransferLeaderResponse](ctx, s, req)
}

func (s *adminScript) StartPlan(
	ctx context.Context, req *quoratev1.StartPlanRequest,
) (*quoratev1.StartPlanResponse, error) {
	return answer[*quoratev1.StartPlanResponse](ctx, s, req)
}

func (s *adminScript) AbortPlan(
	ctx context.Context, req *quoratev1.AbortPlanRequest,
) (*quoratev1.AbortPlanResponse, error) {
	return answer[*quoratev1.AbortPlanResponse](ctx, s, req)
}

func (s *adminScript) ListPlans(
	ctx context.Context, req *quoratev1.ListPlansRequest,
) (*quoratev1.ListPlansResponse, error) {
	return answer[*quoratev1.ListPlansResponse](ctx, s, req)
}

func (s *adminScript) ApplyPolicy(
	ctx context.Context, req *quoratev1.ApplyPolicyRequest,
) (*quoratev1.ApplyPolicyResponse, error) {
	return answer[*quoratev1.ApplyPolicyResponse](ctx, s, req)
}

func (s *adminScript) RollbackPolicy(
	ctx context.Context, req *quoratev1.RollbackPolicyRequest,
) (*quoratev1.ApplyPolicyResponse, error) {
	return answer[*quoratev1.ApplyPolicyResponse](ctx, s, req)
}

func (s *adminScript) SwitchClass(
	ctx context.Context, req *quoratev1.SwitchClassRequest,
) (*quoratev1.ApplyPolicyResponse, error) {
	return answer[*quoratev1.ApplyPolicyResponse](ctx, s, req)
}

func (s *adminScript) ListPolicies(
	ctx context.Context, req *quoratev1.ListPoliciesRequest,
) (*quoratev1.ListPoliciesResponse, error) {
	return answer[*quoratev1.ListPoliciesResponse](ctx, s, req)
}

func (s *adminScript) DiffPolicies(
	ctx context.Context, req *quoratev1.DiffPoliciesRequest,
) (*quoratev1.DiffPoliciesResponse, error) {
	return answer[*quoratev1.DiffPoliciesResponse](ctx, s, req)
}

func (s *adminScript) PolicyStatus(
	ctx context.Context, req *quoratev1.PolicyStatusRequest,
) (*quoratev1.PolicyStatusResponse, error) {
	return answer[*quoratev1.PolicyStatusResponse](ctx, s, req)
}

func (s *adminScript) ForgiveUsage(
	ctx context.Context, req *quoratev1.ForgiveUsageRequest,
) (*quoratev1.ForgiveUsageResponse, error) {
	return answer[*quoratev1.ForgiveUsageResponse](ctx, s, req)
}

func (s *adminScript) SearchAudit(
	ctx context.Context, req *quoratev1.SearchAuditRequest,
) (*quoratev1.SearchAuditResponse, error) {
	return answer[*quoratev1.SearchAuditResponse](ctx, s, req)
}

func (s *adminScript) CreateToken(
	ctx context.Context, req *quoratev1.CreateTokenRequest,
) (*quoratev1.CreateTokenResponse, error) {
	return answer[*quoratev1.CreateTokenResponse](ctx, s, req)
}

func (s *adminScript) ListTokens(
	ctx context.Context, req *quoratev1.ListTokensRequest,
) (*quoratev1.ListTokensResponse, error) {
	return answer[*quoratev1.ListTokensResponse](ctx, s, req)
}

func (s *adminScript) RevokeToken(
	ctx context.Context, req *quoratev1.RevokeTokenRequest,
) (*quoratev1.RevokeTokenResponse, error) {
	return answer[*quoratev1.RevokeTokenResponse](ctx, s, req)
}

// UploadPolicy takes any body that has its digest, and notes the digest as the request.
func (s *adminScript) UploadPolicy(
	stream grpc.ClientStreamingServer[quoratev1.UploadPolicyRequest, quoratev1.UploadPolicyResponse],
) error {
	var body, digest []byte
	for {
		piece, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		digest = append(digest, piece.GetDigest()...)
		body = append(body, piece.GetChunk()...)
	}
	if sum := sha256.Sum256(body); !bytes.Equal(sum[:], digest) {
		return errors.New("the digest is that of another body")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, &quoratev1.UploadPolicyRequest{Digest: digest})
	s.body = body
	return stream.SendAndClose(&quoratev1.UploadPolicyResponse{Size: int64(len(body)), Held: 3, Nodes: 3})
}

// DownloadPolicy sends the script's policy in two pieces.
func (s *adminScript) DownloadPolicy(
	req *quoratev1.DownloadPolicyRequest, stream grpc.ServerStreamingServer[quoratev1.DownloadPolicyResponse],
) error {
	first, err := answer[*quoratev1.DownloadPolicyResponse](stream.Context(), s, req)
	if err != nil {
		return err
	}
	half := len(s.policy) / 2
	first = proto.CloneOf(first)
	first.Chunk = s.policy[:half]
	if err := stream.Send(first); err != nil {
		return err
	}
	return stream.Send(&quoratev1.DownloadPolicyResponse{Chunk: s.policy[half:]})
}

// mustJSON runs a command with -o json and reads what it prints into v.
func mustJSON(t *testing.T, v any, args ...string) {
	t.Helper()
	r := mustRun(t, append(args, "-o", "json")...)
	d := json.NewDecoder(strings.NewReader(r.stdout))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		t.Fatalf("%v: %v: %s", args, err, r.stdout)
	}
}

// mustFail runs a command that must end with a status, nothing on standard output, and one line with each of wants.
func mustFail(t *testing.T, status int, wants []string, args ...string) {
	t.Helper()
	r := runWith(t, "", args...)
	if r.status != status || r.stdout != "" || strings.Count(r.stderr, "\n") != 1 {
		t.Errorf("%v: %+v, want status %d and one line", args, r, status)
	}
	for _, want := range wants {
		if !strings.Contains(r.stderr, want) {
			t.Errorf("%v: %q lacks %q", args, r.stderr, want)
		}
	}
}

func mustPolicy(t *testing.T, text string) *policy.Policy {
	t.Helper()
	p, err := policy.Parse("test", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}
