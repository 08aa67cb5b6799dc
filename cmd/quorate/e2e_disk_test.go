package main

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/quorate/quorate/quotaerr"
)

// setConfig changes a line of a stopped node's configuration.
func (p *processes) setConfig(t *testing.T, id, from, to string) {
	t.Helper()
	src, err := os.ReadFile(p.config(id))
	if err != nil {
		t.Fatal(err)
	}
	changed := bytes.Replace(src, []byte(from), []byte(to), 1)
	if bytes.Equal(src, changed) {
		t.Fatalf("nothing to change in\n%s", src)
	}
	if err := os.WriteFile(p.config(id), changed, 0o600); err != nil {
		t.Fatal(err)
	}
}

// leads reports whether a node leads a partition; true while that is not known of one.
func (p *processes) leads(t *testing.T, id string) bool {
	t.Helper()
	v, ok := p.status(t)
	return !ok || slices.ContainsFunc(v.Partitions, func(g partitionView) bool { return g.Leader == id || g.Leader == "" })
}

// lowEverywhere reports whether a node says of its replica of each partition that its disk is low.
func (p *processes) lowEverywhere(t *testing.T, id string) bool {
	t.Helper()
	v, ok := p.status(t)
	return ok && !slices.ContainsFunc(v.Partitions, func(g partitionView) bool {
		return !slices.ContainsFunc(g.ReplicaStates, func(r replicaView) bool { return r.Node == id && r.DiskLow })
	})
}

// Shows that a node whose disk has too little room says so and leaves the lead of every partition to another, so
// that checks go on; and that with no node that has room checks are refused as capacity, on both doors.
func TestFullDisks(t *testing.T) {
	t.Parallel()
	p := mustCluster(t)
	const enough, tooMuch = "min_free_mib: 256", "min_free_mib: 1073741824"
	partition := p.partitionOf(t, "u1")
	low := p.leader(t, partition)
	p.kill(t, low)
	p.setConfig(t, low, enough, tooMuch)
	p.launch(t, low)
	until(t, low+" says that its disk is low", func() bool { return p.lowEverywhere(t, low) })
	a := mustHTTP(t, http.MethodGet, "http://"+p.node(low).HTTP+"/readyz?verbose", "")
	if a.status != http.StatusServiceUnavailable || !strings.Contains(a.body, "[-] disk") {
		t.Errorf("readyz: %+v", a)
	}
	a = mustHTTP(t, http.MethodGet, "http://"+p.node(low).HTTP+"/metrics", "")
	if !strings.Contains(a.body, `quorate_partition_disk_low{partition="`+partition+`"} 1`) {
		t.Error("the metrics do not say that the disk is low")
	}
	until(t, "those with room lead", func() bool { return !p.leads(t, low) })
	leader := p.leader(t, partition)
	for _, n := range p.others(low) {
		if n.ID != leader {
			p.kill(t, n.ID) // now the low one is needed
		}
	}
	if d := p.check(t, p.node(low).GRPC, "u1", "convert", "a0"); !d.Allowed {
		t.Errorf("with one disk low: %+v", d)
	}

	p.kill(t, leader)
	for _, n := range p.others(low) {
		p.setConfig(t, n.ID, enough, tooMuch)
		p.launch(t, n.ID)
	}
	until(t, "all say that their disks are low", func() bool {
		return !slices.ContainsFunc(p.nodes, func(n devNode) bool { return !p.lowEverywhere(t, n.ID) })
	})
	for _, n := range p.nodes {
		until(t, n.ID+" refuses for want of room", func() bool {
			d, err := post(n, "u2", "convert", "b0")
			if d.Allowed {
				t.Fatalf("%s, with no room anywhere: %+v", n.ID, d)
			}
			return quotaerr.ReasonOf(err) == quotaerr.Capacity
		})
	}
	until(t, "the command line says so", func() bool {
		r := p.ask(t, "check", "u2", "convert", "--timeout", "2s") // leadership may be on its way
		return r.status == exitUnavailable && strings.Contains(r.stderr, "capacity")
	})
}

// fill writes more than a MiB of log into one partition: checks of principals with long names.
func fill(t *testing.T, p *processes, partition string) {
	t.Helper()
	const workers, each = 16, 120
	var names []string
	for i := 0; len(names) < workers*each; i++ {
		if name := fmt.Sprintf("%d-%s", i, strings.Repeat("x", 490)); p.partitionOf(t, name) == partition {
			names = append(names, name)
		}
	}
	var wg sync.WaitGroup
	for w := range workers {
		c := mustClient(t, p.rotated(w)...)
		wg.Go(func() {
			for _, name := range names[w*each : (w+1)*each] {
				if _, err := decide(t.Context(), c, name, "convert", "fill"+strings.Repeat("y", 120)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// written is how many bytes of a preallocated file are in use.
func written(b []byte) int {
	return len(bytes.TrimRight(b, "\x00"))
}

// newest is the last of the files that match.
func newest(t *testing.T, pattern ...string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(pattern...))
	if err != nil || len(found) == 0 {
		t.Fatalf("no file %s: %v", filepath.Join(pattern...), err)
	}
	return found[len(found)-1]
}

// Shows that a node does not start on a damaged data directory, and leaves it as it is: a flipped bit
// in the log, a log that was cut, and a newest snapshot that is damaged or gone.
func TestDamagedDirectory(t *testing.T) {
	t.Parallel()
	p := mustCluster(t)
	partition := p.partitionOf(t, "u1")
	damaged := p.others(p.leader(t, partition))[0]
	p.kill(t, damaged.ID)
	p.setConfig(t, damaged.ID, "snapshot_log_mib: 64", "snapshot_log_mib: 1")
	p.restart(t, damaged.ID)
	fill(t, p, partition)
	p.mustAgree(t)
	groupDir := filepath.Join(damaged.DataDir, "groups", partition)
	until(t, "there is a snapshot", func() bool {
		found, err := filepath.Glob(filepath.Join(groupDir, "snapshots", "*", "state.bin"))
		return err == nil && len(found) > 0 && !strings.Contains(found[0], ".tmp")
	})
	p.kill(t, damaged.ID)
	whole := filepath.Join(t.TempDir(), "whole")
	mustCopy(t, groupDir, whole)
	flip := func(pattern string, numerator, denominator int) func() {
		return func() {
			file := newest(t, groupDir, pattern)
			b := mustFile(t, file)
			b[written(b)*numerator/denominator] ^= 0x10
			if err := os.WriteFile(file, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	// Some bytes of the log's file are only padding, so the bit is one of a check's class.
	flipEntry := func(numerator, denominator int) func() {
		return func() {
			file := newest(t, groupDir, "wal/*.wal")
			b := mustFile(t, file)
			at := bytes.LastIndex(b[:written(b)*numerator/denominator], []byte("convert"))
			if at < 0 {
				t.Fatalf("%s holds no check", file)
			}
			b[at] ^= 0x10
			if err := os.WriteFile(file, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, tt := range []struct {
		name   string
		damage func()
	}{
		// What is before the trailing entries is in the file, but not in the log any more.
		{"a bit in the log", flipEntry(9, 10)},
		{"a bit late in the log", flipEntry(29, 30)},
		{"a bit of the last check", flipEntry(1, 1)},
		{"the log's tail", func() {
			file := newest(t, groupDir, "wal/*.wal")
			if err := os.Truncate(file, int64(written(mustFile(t, file))*9/10)); err != nil {
				t.Fatal(err)
			}
		}},
		{"a bit of the newest snapshot", flip("snapshots/*/state.bin", 1, 2)},
		{"a bit of the newest snapshot's description", flip("snapshots/*/meta.json", 1, 3)},
		{"the newest snapshot is gone", func() {
			if err := os.RemoveAll(filepath.Dir(newest(t, groupDir, "snapshots/*/state.bin"))); err != nil {
				t.Fatal(err)
			}
		}},
		{"the log is gone", func() {
			if err := os.RemoveAll(filepath.Join(groupDir, "wal")); err != nil {
				t.Fatal(err)
			}
		}},
		{"all of the group is gone", func() {
			if err := os.RemoveAll(groupDir); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		if err := os.RemoveAll(groupDir); err != nil {
			t.Fatal(err)
		}
		mustCopy(t, whole, groupDir)
		tt.damage()
		p.mustRefusePart(t, tt.name, damaged.ID, groupDir)
	}
	if err := os.RemoveAll(groupDir); err != nil {
		t.Fatal(err)
	}
	mustCopy(t, whole, groupDir)
	p.restart(t, damaged.ID)
	p.mustAgree(t)
}

func mustFile(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
