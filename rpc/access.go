package rpc

import (
	"context"
	"net"
	"strings"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/internal/identity"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// Who may operate: look on, and change something. Refused attempts to change something are noted.
const (
	accessLook   = identity.Viewer | identity.Admin
	accessChange = identity.Admin
)

// access says for every gRPC method which roles may call it. A method that is not here is served to nobody.
var access = map[string]identity.Role{
	quoratev1.Quota_CheckAndConsume_FullMethodName: identity.Gateway,
	quoratev1.Quota_CheckStream_FullMethodName:     identity.Gateway,
	quoratev1.Quota_Peek_FullMethodName:            identity.Gateway | accessLook,
	quoratev1.Quota_WatchConfig_FullMethodName:     identity.Gateway | accessLook,

	ratelimitv3.RateLimitService_ShouldRateLimit_FullMethodName: identity.Gateway,

	quoratev1.Admin_ClusterStatus_FullMethodName:  accessLook,
	quoratev1.Admin_InitCluster_FullMethodName:    accessChange,
	quoratev1.Admin_ListNodes_FullMethodName:      accessLook,
	quoratev1.Admin_AddNode_FullMethodName:        accessChange,
	quoratev1.Admin_DrainNode_FullMethodName:      accessChange,
	quoratev1.Admin_RemoveNode_FullMethodName:     accessChange,
	quoratev1.Admin_ReplaceNode_FullMethodName:    accessChange,
	quoratev1.Admin_TransferLeader_FullMethodName: accessChange,
	quoratev1.Admin_StartPlan_FullMethodName:      accessChange,
	quoratev1.Admin_AbortPlan_FullMethodName:      accessChange,
	quoratev1.Admin_ListPlans_FullMethodName:      accessLook,
	// A backup has what every principal has used, and the tokens' hashes.
	quoratev1.Admin_SaveSnapshot_FullMethodName:    accessChange,
	quoratev1.Admin_RestoreSnapshot_FullMethodName: accessChange,
	quoratev1.Admin_UploadPolicy_FullMethodName:    accessChange,
	quoratev1.Admin_DownloadPolicy_FullMethodName:  accessLook,
	quoratev1.Admin_ApplyPolicy_FullMethodName:     accessChange,
	quoratev1.Admin_RollbackPolicy_FullMethodName:  accessChange,
	quoratev1.Admin_SwitchClass_FullMethodName:     accessChange,
	quoratev1.Admin_ListPolicies_FullMethodName:    accessLook,
	quoratev1.Admin_DiffPolicies_FullMethodName:    accessLook,
	quoratev1.Admin_PolicyStatus_FullMethodName:    accessLook,
	quoratev1.Admin_ForgiveUsage_FullMethodName:    accessChange,
	quoratev1.Admin_SearchAudit_FullMethodName:     accessLook,
	quoratev1.Admin_CreateToken_FullMethodName:     accessChange,
	quoratev1.Admin_ListTokens_FullMethodName:      accessLook,
	quoratev1.Admin_RevokeToken_FullMethodName:     accessChange,

	quoratev1.Peer_ForwardCheck_FullMethodName:    identity.Node,
	quoratev1.Peer_ForwardPeek_FullMethodName:     identity.Node,
	quoratev1.Peer_NodeStatus_FullMethodName:      identity.Node,
	quoratev1.Peer_ReportPace_FullMethodName:      identity.Node,
	quoratev1.Peer_ForwardAdmin_FullMethodName:    identity.Node,
	quoratev1.Peer_ConfirmPolicy_FullMethodName:   identity.Node,
	quoratev1.Peer_PartitionPolicy_FullMethodName: identity.Node,
	quoratev1.Peer_HasBody_FullMethodName:         identity.Node,
	quoratev1.Peer_PutBody_FullMethodName:         identity.Node,
	quoratev1.Peer_GetBody_FullMethodName:         identity.Node,
	quoratev1.Peer_PlanStep_FullMethodName:        identity.Node,
	quoratev1.Peer_ExportSlots_FullMethodName:     identity.Node,
	quoratev1.Peer_ExportPartition_FullMethodName: identity.Node,

	healthv1.Health_Check_FullMethodName: identity.AnyRole,
	healthv1.Health_List_FullMethodName:  identity.AnyRole,
	healthv1.Health_Watch_FullMethodName: identity.AnyRole,
}

// The HTTP paths that are not open to all.
const (
	accessCheck   = identity.Gateway
	accessMetrics = accessLook
)

// errUnknownMethod answers calls of services and methods that do not exist.
var errUnknownMethod = status.Error(codes.Unimplemented,
	"this node serves no such method; check the client's version")

// authorise refuses a caller whose role may not do what takes one of roles.
func authorise(id Identity, roles identity.Role, what string) error {
	switch {
	case id.Name == "":
		return quotaerr.New(quotaerr.Unauthenticated, "the connection proves no identity")
	case !id.Roles.Is(roles):
		return quotaerr.New(quotaerr.PermissionDenied, "%s may not call %s: it takes the role %s", id, what, roles)
	}
	return nil
}

// mayAsk refuses a gateway that names a class which its certificate does not.
func (id Identity) mayAsk(apiClass string) error {
	if (identity.ID{Classes: id.Classes}).MayAsk(apiClass) {
		return nil
	}
	return quotaerr.New(quotaerr.PermissionDenied,
		"gateway %s may not ask for api_class %.128q: its certificate lists %.200s",
		id.Name, apiClass, strings.Join(id.Classes, ", "))
}

// mayAskAll is the same for all that a check charges.
func (id Identity) mayAskAll(c *fsm.Check) error {
	if err := id.mayAsk(c.Class); err != nil {
		return err
	}
	for _, a := range c.Also {
		if err := id.mayAsk(a.Class); err != nil {
			return err
		}
	}
	return nil
}

// Proven tells who a connection with TLS has proven to be. It is the Authenticator where there is TLS.
func Proven(ctx context.Context) (Identity, error) {
	c := connOf(ctx)
	switch {
	case c == nil:
		return Identity{}, quotaerr.New(quotaerr.Unauthenticated, "the connection proves no identity")
	case c.err != nil:
		return Identity{}, quotaerr.New(quotaerr.Unauthenticated, "%v", c.err)
	}
	return Identity{Name: c.id.Name, Roles: c.id.Role, Classes: c.id.Classes}, nil
}

type connKey struct{}

// withConn is the HTTP server's ConnContext.
func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// connOf is the connection of a call by either protocol; nil when it is none of a door.
func connOf(ctx context.Context) *doorConn {
	if c, ok := ctx.Value(connKey{}).(*doorConn); ok {
		return c
	}
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(connInfo); ok {
			return info.conn
		}
	}
	return nil
}

// connInfo leads gRPC's calls to their connection.
type connInfo struct {
	credentials.CommonAuthInfo
	conn *doorConn
}

// AuthType says that it is TLS.
func (connInfo) AuthType() string { return "tls" }

// doorCredentials are the gRPC server's where a door has done the handshake.
type doorCredentials struct {
	credentials.TransportCredentials
}

func (doorCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, ok := conn.(*doorConn)
	if !ok {
		return nil, nil, quotaerr.New(quotaerr.Internal, "a connection came past the door")
	}
	return c, connInfo{credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}, c}, nil
}

func (doorCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

func (d doorCredentials) Clone() credentials.TransportCredentials { return d }
