package cluster

import "crypto/tls"

// GatewayTLS is the TLS configuration that shows the certificate of the gateway edge.
func (c *Cluster) GatewayTLS() (*tls.Config, error) { return c.gateway() }

// Groups are the control group and the partitions.
func (s *Status) Groups() []*GroupState { return s.groups() }

// Done reports whether the plan did what it was for.
func (p *Plan) Done() bool { return p.Phase == planDone }
