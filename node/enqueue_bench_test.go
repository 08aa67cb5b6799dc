package node

import (
	"fmt"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/router"
	"github.com/quorate/quorate/rpc"
)

// BenchmarkByPartition is what it costs to tell the partition of each of 256 checks that come together, with one
// partition and with eight.
func BenchmarkByPartition(b *testing.B) {
	const each = 256
	for _, partitions := range []int{1, 8} {
		b.Run(fmt.Sprint(partitions), func(b *testing.B) {
			parts := router.Parts{Cluster: "c", Version: 1, Nodes: []router.Node{{ID: "a", GRPC: "a:1"}}}
			for i := range partitions {
				id, slots := fmt.Sprint("p", i), router.NumSlots/partitions
				parts.Partitions = append(parts.Partitions, router.Partition{ID: id, Replicas: []string{"a"}})
				parts.Ranges = append(parts.Ranges, router.Range{
					First: uint16(i * slots), Last: uint16((i+1)*slots - 1), Epoch: 1, Partition: id,
				})
			}
			m, err := router.NewMap(parts)
			if err != nil {
				b.Fatal(err)
			}
			n := &Node{}
			n.routes.Update(m)
			asked := make([]rpc.Asked, each)
			for i := range asked {
				asked[i].Check = fsm.Check{Principal: fmt.Sprintf("principal-%06d", i)}
			}
			b.ReportAllocs()
			for b.Loop() {
				(*backend)(n).byPartition(asked)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*each), "ns/check")
		})
	}
}
