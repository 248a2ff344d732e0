// All-reduces of training jobs on a two-tier fabric, packet by packet, with ns-3.
//
// Reads a scenario from standard input, one statement per line:
//
//   NAME VALUE                                    a setting of the fabric or of the transport: see struct Settings
//   transport window|dctcp|cubic                  window: no congestion control, a fixed number of packets in flight
//   paths SPINE ...                               by host: the spine that packets to it take; default: spine 0
//   job START_S COMPUTE_S ITERATIONS READY_S ...  READY_S: when each bucket of gradients exists, from the iteration's start
//   ring PHASE STEPS BYTES HOST ...               of the last job: one bucket's ring; phases follow each other
//
// Prints `job` and the seconds at which its iterations ended, one line per job, then `dropped` and the packets that
// queues dropped. An iteration ends when its computation is over and its last bucket is reduced; the next one begins
// at once. Jobs go on until each has had its iterations.

#include "ns3/core-module.h"
#include "ns3/internet-module.h"
#include "ns3/network-module.h"
#include "ns3/point-to-point-module.h"
#include "ns3/traffic-control-module.h"

#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

using namespace ns3;

namespace
{

constexpr double CONNECT_S = 0.05; // connections are open before any job starts
constexpr uint32_t TCP_IP_HEADER = 40;
constexpr uint32_t HOST_QUEUE = 100000; // packets: hosts hold their own packets back, only switches drop
constexpr uint16_t FIRST_PORT = 5000;
constexpr uint8_t INTERACTIVE = 0x10; // the type of service of packets that queues put first

[[noreturn]] void Fail(const std::string& message)
{
    std::cerr << "error: " << message << std::endl;
    std::exit(2);
}

struct Settings
{
    std::map<std::string, double> numbers{
        {"rate", 100e9},         // bits/s of a host's link
        {"delay", 1.25e-6},      // seconds of every link
        {"mtu", 9000},           // bytes
        {"racks", 2},
        {"hosts", 4},            // per rack
        {"spines", 1},
        {"oversubscription", 1}, // a rack's up-links together have hosts * rate / this
        {"window", 64},          // packets in flight per connection of transport window
        {"queue", 20000},        // packets per port of a switch
        {"mark", 20},            // packets in a queue from which dctcp's are marked
        {"acks_first", 1},       // 0: acknowledgements wait behind data
    };
    std::string transport = "window";
    std::vector<uint32_t> paths;

    double operator[](const std::string& name) const { return numbers.at(name); }
    uint32_t Count(const std::string& name) const { return static_cast<uint32_t>(numbers.at(name)); }
};

// One direction between two hosts of a ring: a connection that stays open, and messages of one size on it.
class Channel
{
  public:
    Channel(Ptr<Node> source, Ptr<Node> target, InetSocketAddress address, uint64_t bytes, bool acks_first)
        : m_bytes(bytes), m_acks_first(acks_first)
    {
        m_listener = Socket::CreateSocket(target, TcpSocketFactory::GetTypeId());
        m_listener->Bind(InetSocketAddress(Ipv4Address::GetAny(), address.GetPort()));
        m_listener->Listen();
        m_listener->SetAcceptCallback(MakeNullCallback<bool, Ptr<Socket>, const Address&>(),
                                      MakeCallback(&Channel::Accept, this));
        m_sender = Socket::CreateSocket(source, TcpSocketFactory::GetTypeId());
        m_sender->SetSendCallback(MakeCallback(&Channel::Push, this));
        Simulator::ScheduleNow([this, address] { m_sender->Connect(address); }); // queues exist from then on
    }

    void OnMessage(std::function<void()> action) { m_action = std::move(action); }

    void Send()
    {
        m_unsent += m_bytes;
        Push(m_sender, m_sender->GetTxAvailable());
    }

  private:
    void Accept(Ptr<Socket> socket, const Address&)
    {
        m_receiver = socket;
        socket->SetIpTos(m_acks_first ? INTERACTIVE : 0);
        socket->SetRecvCallback(MakeCallback(&Channel::Receive, this));
    }

    void Push(Ptr<Socket> socket, uint32_t)
    {
        while (m_unsent > 0 && socket->GetTxAvailable() > 0)
        {
            auto part = static_cast<uint32_t>(std::min<uint64_t>(m_unsent, socket->GetTxAvailable()));
            m_unsent -= part; // before Send, which may call back
            socket->Send(Create<Packet>(part));
        }
    }

    void Receive(Ptr<Socket> socket)
    {
        while (Ptr<Packet> packet = socket->Recv())
        {
            m_received += packet->GetSize();
        }
        while (m_received >= m_bytes)
        {
            m_received -= m_bytes;
            m_action();
        }
    }

    uint64_t m_bytes;
    bool m_acks_first;
    uint64_t m_unsent = 0;
    uint64_t m_received = 0;
    std::function<void()> m_action;
    Ptr<Socket> m_listener, m_sender, m_receiver;
};

// Every member sends to the next one, and again for each message that it got from the one before, `steps` times.
class Ring
{
  public:
    Ring(uint32_t steps, std::vector<std::unique_ptr<Channel>> channels)
        : m_steps(steps), m_channels(std::move(channels)), m_got(m_channels.size())
    {
        for (size_t i = 0; i < m_channels.size(); i++)
        {
            m_channels[i]->OnMessage([this, next = (i + 1) % m_channels.size()] { Got(next); });
        }
    }

    void Start(std::function<void()> done)
    {
        m_done = std::move(done);
        m_finished = 0;
        m_got.assign(m_channels.size(), 0);
        for (auto& channel : m_channels)
        {
            channel->Send();
        }
    }

  private:
    void Got(size_t member)
    {
        if (++m_got[member] < m_steps)
        {
            m_channels[member]->Send();
        }
        else if (++m_finished == m_channels.size())
        {
            m_done();
        }
    }

    uint32_t m_steps;
    std::vector<std::unique_ptr<Channel>> m_channels;
    std::vector<uint32_t> m_got;
    size_t m_finished = 0;
    std::function<void()> m_done;
};

// Iterations of computation whose buckets of gradients are reduced one after the other.
class Job
{
  public:
    Job(double start_s, double compute_s, uint32_t iterations, std::vector<double> ready_s)
        : m_start(Seconds(CONNECT_S + start_s)), m_compute(Seconds(compute_s)), m_iterations(iterations),
          m_ready_s(std::move(ready_s))
    {
    }

    void Add(uint32_t phase, std::unique_ptr<Ring> ring) { m_phases[phase].push_back(std::move(ring)); }

    void Schedule(std::function<void()> finished)
    {
        m_on_finished = std::move(finished);
        Simulator::Schedule(m_start, &Job::Begin, this);
    }

    const std::vector<double>& Ends() const { return m_ends_s; }

  private:
    void Begin()
    {
        m_ready = m_reduced = 0;
        m_computing = true;
        for (double ready_s : m_ready_s)
        {
            Simulator::Schedule(Seconds(ready_s), &Job::BucketReady, this);
        }
        Simulator::Schedule(m_compute, &Job::ComputeEnds, this);
    }

    void BucketReady()
    {
        m_ready++;
        Advance();
    }

    void ComputeEnds()
    {
        m_computing = false;
        Advance();
    }

    void Advance()
    {
        if (!m_sending && m_ready > m_reduced)
        {
            m_sending = true;
            StartPhase(m_phases.begin());
        }
        else if (!m_computing && m_reduced == m_ready_s.size())
        {
            m_ends_s.push_back((Simulator::Now() - Seconds(CONNECT_S)).GetSeconds());
            if (m_ends_s.size() == m_iterations)
            {
                m_on_finished();
            }
            Begin();
        }
    }

    void StartPhase(std::map<uint32_t, std::vector<std::unique_ptr<Ring>>>::iterator phase)
    {
        if (phase == m_phases.end())
        {
            m_sending = false;
            m_reduced++;
            Advance();
            return;
        }
        m_running = phase->second.size();
        for (auto& ring : phase->second)
        {
            ring->Start([this, phase] {
                if (--m_running == 0)
                {
                    StartPhase(std::next(phase));
                }
            });
        }
    }

    Time m_start, m_compute;
    uint32_t m_iterations;
    std::vector<double> m_ready_s, m_ends_s;
    std::map<uint32_t, std::vector<std::unique_ptr<Ring>>> m_phases;
    std::function<void()> m_on_finished;
    size_t m_ready = 0, m_reduced = 0, m_running = 0;
    bool m_computing = false, m_sending = false;
};

// Hosts, rack switches and spines; each host one link, each rack one up-link per spine; routes by destination.
class Fabric
{
  public:
    explicit Fabric(const Settings& settings)
        : m_settings(settings), m_hosts(settings.Count("racks") * settings.Count("hosts"))
    {
        m_host_nodes.Create(m_hosts);
        m_racks.Create(settings.Count("racks"));
        m_spines.Create(settings.Count("spines"));
        InternetStackHelper stack;
        Ipv4StaticRoutingHelper routing;
        stack.SetRoutingHelper(routing);
        stack.SetIpv6StackInstall(false);
        stack.Install(NodeContainer(m_host_nodes, m_racks, m_spines));
        m_addresses.SetBase("10.0.0.0", "255.255.255.252");
        LinkHosts(routing);
        LinkSpines(routing);
    }

    std::unique_ptr<Ring> MakeRing(uint32_t steps, uint64_t bytes, const std::vector<uint32_t>& hosts)
    {
        std::vector<std::unique_ptr<Channel>> channels;
        for (size_t i = 0; i < hosts.size(); i++)
        {
            uint32_t source = hosts[i], target = hosts[(i + 1) % hosts.size()];
            InetSocketAddress address(m_host_address[target], m_next_port++);
            channels.push_back(std::make_unique<Channel>(m_host_nodes.Get(source), m_host_nodes.Get(target), address,
                                                         bytes, m_settings["acks_first"] > 0));
        }
        return std::make_unique<Ring>(steps, std::move(channels));
    }

    uint32_t Hosts() const { return m_hosts; }

    uint64_t Dropped() const
    {
        uint64_t dropped = 0;
        for (uint32_t i = 0; i < m_disciplines.GetN(); i++)
        {
            dropped += m_disciplines.Get(i)->GetStats().nTotalDroppedPackets;
        }
        return dropped;
    }

  private:
    Ipv4InterfaceContainer Link(Ptr<Node> low, Ptr<Node> high, double rate, bool low_is_switch)
    {
        PointToPointHelper link;
        link.SetDeviceAttribute("DataRate", DataRateValue(DataRate(static_cast<uint64_t>(rate))));
        link.SetDeviceAttribute("Mtu", UintegerValue(m_settings.Count("mtu")));
        link.SetChannelAttribute("Delay", TimeValue(Seconds(m_settings["delay"])));
        link.SetQueue("ns3::DropTailQueue", "MaxSize", StringValue("1p"));
        NetDeviceContainer devices = link.Install(low, high);
        m_disciplines.Add(Discipline(low_is_switch).Install(devices.Get(0)));
        m_disciplines.Add(Discipline(true).Install(devices.Get(1)));
        m_addresses.NewNetwork();
        return m_addresses.Assign(devices);
    }

    // Acknowledgements first, then data in order of arrival; switches mark it from `mark` packets on for dctcp.
    TrafficControlHelper Discipline(bool is_switch) const
    {
        StringValue size(std::to_string(is_switch ? m_settings.Count("queue") : HOST_QUEUE) + "p");
        TrafficControlHelper control;
        uint16_t root = control.SetRootQueueDisc("ns3::PrioQueueDisc", "Priomap",
                                                 StringValue("1 1 1 1 1 1 0 1 1 1 1 1 1 1 1 1"));
        auto bands = control.AddQueueDiscClasses(root, 2, "ns3::QueueDiscClass");
        control.AddChildQueueDisc(root, bands[0], "ns3::FifoQueueDisc", "MaxSize", size);
        if (is_switch && m_settings.transport == "dctcp")
        {
            DoubleValue mark(m_settings["mark"]);
            control.AddChildQueueDisc(root, bands[1], "ns3::RedQueueDisc", "MaxSize", size, "MinTh", mark, "MaxTh", mark,
                                      "QW", DoubleValue(1), "UseEcn", BooleanValue(true), "UseHardDrop",
                                      BooleanValue(false), "MeanPktSize", UintegerValue(m_settings.Count("mtu")));
        }
        else
        {
            control.AddChildQueueDisc(root, bands[1], "ns3::FifoQueueDisc", "MaxSize", size);
        }
        return control;
    }

    void LinkHosts(const Ipv4StaticRoutingHelper& routing)
    {
        for (uint32_t host = 0; host < m_hosts; host++)
        {
            Ptr<Node> rack = m_racks.Get(host / m_settings.Count("hosts"));
            auto ends = Link(m_host_nodes.Get(host), rack, m_settings["rate"], false);
            m_host_address.push_back(ends.GetAddress(0));
            RoutesOf(routing, m_host_nodes.Get(host))->SetDefaultRoute(ends.GetAddress(1), 1);
        }
    }

    void LinkSpines(const Ipv4StaticRoutingHelper& routing)
    {
        uint32_t per_rack = m_settings.Count("hosts");
        double rate = per_rack * m_settings["rate"] / m_settings["oversubscription"] / m_spines.GetN();
        for (uint32_t rack = 0; rack < m_racks.GetN(); rack++)
        {
            for (uint32_t spine = 0; spine < m_spines.GetN(); spine++)
            {
                auto ends = Link(m_racks.Get(rack), m_spines.Get(spine), rate, true);
                for (uint32_t host = 0; host < m_hosts; host++)
                {
                    bool below = host / per_rack == rack;
                    if (below)
                    {
                        RoutesOf(routing, m_spines.Get(spine))
                            ->AddHostRouteTo(m_host_address[host], ends.GetAddress(0), rack + 1);
                    }
                    else if (m_settings.paths[host] == spine)
                    {
                        RoutesOf(routing, m_racks.Get(rack))
                            ->AddHostRouteTo(m_host_address[host], ends.GetAddress(1), per_rack + spine + 1);
                    }
                }
            }
        }
    }

    static Ptr<Ipv4StaticRouting> RoutesOf(const Ipv4StaticRoutingHelper& routing, Ptr<Node> node)
    {
        return routing.GetStaticRouting(node->GetObject<Ipv4>());
    }

    Settings m_settings;
    uint32_t m_hosts;
    NodeContainer m_host_nodes, m_racks, m_spines;
    Ipv4AddressHelper m_addresses;
    std::vector<Ipv4Address> m_host_address;
    QueueDiscContainer m_disciplines;
    uint16_t m_next_port = FIRST_PORT;
};

void ConfigureTransport(const Settings& settings)
{
    const std::map<std::string, std::string> types{
        {"window", "ns3::TcpNewReno"}, {"dctcp", "ns3::TcpDctcp"}, {"cubic", "ns3::TcpCubic"}};
    if (types.count(settings.transport) == 0)
    {
        Fail("transport: expected window, dctcp or cubic, got \"" + settings.transport + "\"");
    }
    uint32_t segment = settings.Count("mtu") - TCP_IP_HEADER;
    bool fixed = settings.transport == "window"; // all of the window from the first packet on
    Config::SetDefault("ns3::TcpL4Protocol::SocketType", StringValue(types.at(settings.transport)));
    Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(segment));
    Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(1 << 26));
    Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(segment * (fixed ? settings.Count("window") : 4096)));
    Config::SetDefault("ns3::TcpSocket::InitialCwnd", UintegerValue(fixed ? 10000 : 10));
    Config::SetDefault("ns3::TcpSocket::InitialSlowStartThreshold", UintegerValue(segment * 10000));
    Config::SetDefault("ns3::TcpSocket::DelAckTimeout", TimeValue(MicroSeconds(50)));
    Config::SetDefault("ns3::TcpSocket::TcpNoDelay", BooleanValue(true));
    Config::SetDefault("ns3::TcpSocketBase::Timestamp", BooleanValue(false));
    Config::SetDefault("ns3::TcpSocketBase::ClockGranularity", TimeValue(MicroSeconds(10)));
    Config::SetDefault("ns3::TcpSocketBase::MinRto", TimeValue(MilliSeconds(fixed ? 1000 : 1)));
}

template <typename T>
std::vector<T> Rest(std::istringstream& line)
{
    std::vector<T> values;
    for (T value; line >> value;)
    {
        values.push_back(value);
    }
    return values;
}

// The jobs of a scenario; settings come before the first job.
std::vector<std::unique_ptr<Job>> ReadJobs(Settings& settings, std::unique_ptr<Fabric>& fabric)
{
    std::vector<std::unique_ptr<Job>> jobs;
    for (std::string text; std::getline(std::cin, text);)
    {
        std::istringstream line(text);
        std::string word;
        line >> word;
        if (word == "transport")
        {
            line >> settings.transport;
        }
        else if (word == "paths")
        {
            settings.paths = Rest<uint32_t>(line);
        }
        else if (settings.numbers.count(word))
        {
            line >> settings.numbers[word];
        }
        else if (word == "job")
        {
            if (!fabric)
            {
                ConfigureTransport(settings);
                settings.paths.resize(settings.Count("racks") * settings.Count("hosts"), 0);
                fabric = std::make_unique<Fabric>(settings);
            }
            double start_s = 0, compute_s = 0;
            uint32_t iterations = 0;
            line >> start_s >> compute_s >> iterations;
            jobs.push_back(std::make_unique<Job>(start_s, compute_s, iterations, Rest<double>(line)));
        }
        else if (word == "ring" && !jobs.empty())
        {
            uint32_t phase = 0, steps = 0;
            double bytes = 0;
            line >> phase >> steps >> bytes;
            auto hosts = Rest<uint32_t>(line);
            if (bytes < 1 || steps < 1 || hosts.size() < 2)
            {
                Fail("ring: expected at least one step, one byte and two hosts, got \"" + text + "\"");
            }
            for (uint32_t host : hosts)
            {
                if (host >= fabric->Hosts())
                {
                    Fail("ring: no host " + std::to_string(host));
                }
            }
            jobs.back()->Add(phase, fabric->MakeRing(steps, static_cast<uint64_t>(bytes), hosts));
        }
        else
        {
            Fail("expected a setting, job or ring, got \"" + text + "\"");
        }
    }
    return jobs;
}

} // namespace

int main()
{
    Settings settings;
    std::unique_ptr<Fabric> fabric;
    auto jobs = ReadJobs(settings, fabric);
    if (jobs.empty())
    {
        Fail("no job in the scenario");
    }
    size_t running = jobs.size();
    for (auto& job : jobs)
    {
        job->Schedule([&running] {
            if (--running == 0)
            {
                Simulator::Stop();
            }
        });
    }
    Simulator::Run();
    std::cout.precision(12);
    for (auto& job : jobs)
    {
        std::cout << "job";
        for (double end_s : job->Ends())
        {
            std::cout << ' ' << end_s;
        }
        std::cout << '\n';
    }
    std::cout << "dropped " << fabric->Dropped() << '\n';
    Simulator::Destroy();
}
